import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/** A topic of many queues: sends to all of them, and a consumer that waits on each. */
final class Many {
    static final String TOPIC = "many";
    static final long PATIENCE_SECONDS = 90;

    /** A batch to each queue, as far as `create` seconds suffice, then a batch to each in turn, timed. */
    static String spread() throws Exception {
        int size = RocketLoad.number("size"), batch = RocketLoad.number("batch"), window = RocketLoad.number("window");
        int wanted = RocketLoad.number("queues");
        double seconds = RocketLoad.real("seconds");
        long began = System.nanoTime();
        List<MessageQueue> queues = create(wanted);
        Meter first = Meter.untilMessages(size, (long) wanted * batch, RocketLoad.real("create"));
        RocketLoad.send(TOPIC, batch, window, first, queues);
        double created = (System.nanoTime() - began) / 1e9;
        int made = (int) Math.min(wanted, first.messages() / batch);
        double warmed = WarmUp.untilSteady(RocketLoad.real("warm-least"), RocketLoad.real("warm-most"), false, slice -> {
            Meter meter = new Meter(size, slice, 0);
            RocketLoad.send(TOPIC, batch, window, meter, queues.subList(0, made));
            return meter;
        });
        Meter meter = new Meter(size, seconds, Math.min(1, seconds / 4));
        RocketLoad.send(TOPIC, batch, window, meter, queues.subList(0, made));
        return meter.json(false, "queues of one topic, " + window + " in flight", String.format(Locale.ROOT,
            ", \"figures\": {\"queues\": %d, \"s to create\": %.2f}, \"warmed\": [%f, 0]", made, created, warmed));
    }

    /** A push consumer, which has a pull that waits for each queue; then a message to one queue at a time. */
    static String waiting() throws Exception {
        int size = RocketLoad.number("size"), wanted = RocketLoad.number("consumers");
        List<MessageQueue> queues = create(wanted);
        BlockingQueue<Integer> arrived = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("waiting");
        consumer.setNamesrvAddr(RocketLoad.nameServers());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            for (MessageExt each : found) arrived.add(each.getQueueId());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = RocketLoad.producer();
        // A message to each, so that all are known to wait, and the JVMs compile what comes.
        Set<Integer> greeted = new HashSet<>();
        for (MessageQueue each : queues) producer.send(new Message(TOPIC, new byte[size]), each);
        while (greeted.size() < wanted) greeted.add(next(arrived));
        Thread.sleep((long) (1000 * RocketLoad.real("settle")));
        long restBegan = System.nanoTime();
        Thread.sleep((long) (1000 * RocketLoad.real("rest")));
        long restEnded = System.nanoTime();
        Meter meter = Meter.untilMessages(size, RocketLoad.number("probes"), RocketLoad.real("seconds"));
        Random random = new Random();
        while (!meter.isOver()) {
            MessageQueue queue = queues.get(random.nextInt(wanted));
            long sentAt = System.nanoTime();
            producer.send(new Message(TOPIC, new byte[size]), queue, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {}

                @Override
                public void onException(Throwable error) { error.printStackTrace(); }
            });
            if (next(arrived) != queue.getQueueId()) throw new IllegalStateException("a message of another queue");
            meter.onAck(1, sentAt);
        }
        consumer.shutdown();
        return meter.json(true, "one push consumer, a pull waits for each queue of a topic", String.format(Locale.ROOT,
            ", \"figures\": {\"consumers\": %d}, \"rest\": [%.6f, %.6f]", wanted, restBegan / 1e9, restEnded / 1e9));
    }

    private static List<MessageQueue> create(int queues) throws Exception {
        RocketLoad.createTopic(RocketLoad.given.get("master"), TOPIC, queues);
        DefaultMQProducer producer = RocketLoad.producer();
        List<MessageQueue> found = producer.fetchPublishMessageQueues(TOPIC);
        producer.shutdown();
        if (found.size() != queues) throw new IllegalStateException(found.size() + " queues");
        return found;
    }

    private static int next(BlockingQueue<Integer> arrived) throws Exception {
        Integer queue = arrived.poll(PATIENCE_SECONDS, TimeUnit.SECONDS);
        if (queue == null) throw new IllegalStateException("a message did not arrive");
        return queue;
    }
}
