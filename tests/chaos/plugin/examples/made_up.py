"""The same promise in a simulated world: a minute takes seconds, and a seed decides everything."""

import pytest
import trio

from raftmq.errors import OutcomeUnknown, Rejected, Unavailable


@pytest.mark.chaos(seeds=5, faults=["client-crash", "isolate-leader", "kill"], time=20)
def test_each_payment_is_booked(sim_cluster, history):
    async def create(mq):
        await mq.admin.create_topic("payments", queues=3)

    async def pay(mq):
        refused, in_doubt = (Unavailable, Rejected), (OutcomeUnknown,)
        async with mq.producer("payments") as producer:
            while not sim_cluster.is_healed:
                number = history.unique_value()
                with history.call(0, "send", value=number, failed=refused, unknown=in_doubt):
                    await producer.send(str(number).encode())
                await trio.sleep(0.05)

    async def book(mq):
        async with mq.consumer("payments", group="books") as consumer:
            while True:
                payments = await consumer.fetch(100, wait=5.0)
                for payment in payments:
                    await trio.sleep(0.01)  # the database takes its time
                    with history.call(1, "poll") as call:
                        call.ok_many([(None, int(payment.body), None)])
                await consumer.commit()
                if sim_cluster.is_healed and not len(payments):
                    return

    sim_cluster.prepare(create)
    sim_cluster.process("payer", pay)
    sim_cluster.process("consumer", book)
    sim_cluster.run()
