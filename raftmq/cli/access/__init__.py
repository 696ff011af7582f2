"""Commands about access: users with their passwords, tokens of programs, rules, quotas, the audit
log."""
