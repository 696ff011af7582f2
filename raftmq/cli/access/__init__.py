"""Commands about access: users with their passwords, tokens of programs, rules, the audit log."""
