"""The consumer that pops: messages of any queue under leases, and their settlement.

Start reading at `consumer`, then `prefetcher` (how much is asked for, and when), `session` (one
partition group) and `settlement_sender` (each ack reaches its leader once).

| what is known of the messages in hand | is kept by | one for each |
|---|---|---|
| which are new, with the application, being settled, done, lost | `HeldLease` | lease |
| which come next, with their batches | `PrefetchBuffer` | consumer |
| how many to ask for, and for how long | `Prefetcher` | consumer |
| the request under way, and the leases that its answer may list | `PopSession` | leader |
| the settlements under way | `SettlementSender` | leader |
| the calls that wait for settlements | `Settlements` | consumer |

    PopConsumer ──> Prefetcher ──> PopSession ──┐
         │              └──────────────┐        ▼
         └──> PoppedMessage ──> Settlements ──> SettlementSender
"""
