import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/**
 * Keyed messages in order, with the numbers and the check of bench/keys.py: message n has the key
 * n % KEYS, its body begins with n, and the numbers of a key ascend wherever they are seen.
 *
 * A key belongs to the queue that SelectMessageQueueByHash chooses. The broker appends concurrent
 * sends in any order, so each queue has one synchronous sender, which sends batches of its keys.
 * Two orderly consumers of a group lock the queues between them.
 */
final class Ordered {
    static final int KEYS = 4000, CONSUMERS = 2, BATCH = 1000;
    /** Most messages of a queue that a consumer pulls ahead. */
    static final int AHEAD = 10_000;
    static final long JOIN_NANOS_MAX = 60_000_000_000L;

    /** Sends batches of `batch` to all queues until the meter is over. */
    static void fill(String topic, int batch, Meter meter) throws Exception {
        DefaultMQProducer producer = RocketLoad.producer();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        Map<MessageQueue, List<Integer>> keys = new HashMap<>();
        for (int key = 0; key < KEYS; key++) {
            MessageQueue queue = new SelectMessageQueueByHash().select(queues, null, "key-" + key);
            keys.computeIfAbsent(queue, each -> new ArrayList<>()).add(key);
        }
        ExecutorService senders = Executors.newFixedThreadPool(keys.size());
        List<Future<?>> done = new ArrayList<>();
        keys.forEach((queue, its) -> done.add(senders.submit(() -> {
            send(producer, queue, its, batch, meter);
            return null;
        })));
        for (Future<?> each : done) each.get();
        senders.shutdown();
        producer.shutdown();
    }

    private static void send(DefaultMQProducer producer, MessageQueue queue, List<Integer> keys, int batch,
            Meter meter) throws Exception {
        for (long sent = 0; !meter.isOver(); ) {
            List<Message> messages = new ArrayList<>(batch);
            for (int i = 0; i < batch; i++, sent++) {
                int key = keys.get((int) (sent % keys.size()));
                byte[] body = new byte[meter.size];
                ByteBuffer.wrap(body).putLong(sent / keys.size() * KEYS + key);
                messages.add(new Message(queue.getTopic(), "", "key-" + key, body));
            }
            long sentAt = System.nanoTime();
            SendStatus status = producer.send(messages, queue, 10_000).getSendStatus();
            if (status != SendStatus.SEND_OK) throw new IllegalStateException("" + status);
            meter.onAck(batch, sentAt);
        }
    }

    /**
     * Hands out all messages of the topic. The first consumer to join has all queues until the second
     * has joined; so none is handed a message before each has its part. What was pulled ahead by then
     * does not count.
     */
    static void consume(String topic, Meter meter) throws Exception {
        AtomicLong left = new AtomicLong();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        AtomicLongArray last = new AtomicLongArray(KEYS);
        for (int key = 0; key < KEYS; key++) last.set(key, -1);
        // A warm-up fills its topic more than once, and so repeats its numbers.
        boolean isChecked = !topic.equals(RocketLoad.WARM);
        Map<Integer, Integer> ahead = new ConcurrentHashMap<>();
        AtomicBoolean isShared = new AtomicBoolean();
        MessageListenerOrderly listener = (found, context) -> {
            if (!isShared.get()) {
                context.setSuspendCurrentQueueTimeMillis(20);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            try {
                if (isChecked) for (MessageExt each : found) check(last, each.getBody());
            } catch (IllegalStateException error) {
                failure.set(error);
            }
            int count = found.size();
            ahead.computeIfPresent(found.get(0).getQueueId(), (queue, rest) -> rest > count ? rest - count : null);
            if (ahead.isEmpty()) meter.onDelivery(count);
            left.addAndGet(-count);
            return ConsumeOrderlyStatus.SUCCESS;
        };
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        String group = "in-order-" + System.nanoTime();
        for (int i = 0; i < CONSUMERS; i++) consumers.add(consumer(group, topic, listener));
        Set<MessageQueue> queues = consumers.get(0).fetchSubscribeMessageQueues(topic);
        for (MessageQueue each : queues) left.addAndGet(RocketLoad.admin().maxOffset(each));
        for (long end = System.nanoTime() + JOIN_NANOS_MAX; !haveShared(consumers, queues); Thread.sleep(20))
            if (System.nanoTime() > end) throw new IllegalStateException("the consumers did not share the queues");
        for (DefaultMQPushConsumer each : consumers)
            pulled(each).forEach((queue, own) -> {
                if (own.getMsgCount().get() > 0) ahead.put(queue.getQueueId(), (int) own.getMsgCount().get());
            });
        isShared.set(true);
        while (left.get() > 0 && !meter.isOver() && failure.get() == null) Thread.sleep(5);
        if (failure.get() != null) throw new RuntimeException(failure.get());
        for (DefaultMQPushConsumer each : consumers) each.shutdown();
    }

    private static DefaultMQPushConsumer consumer(String group, String topic, MessageListenerOrderly listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(RocketLoad.nameServers());
        consumer.setInstanceName("ordered" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(BATCH);
        consumer.setConsumeMessageBatchMaxSize(BATCH);
        consumer.setPullThresholdForQueue(AHEAD);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    /** Has each consumer locked its part of the queues? */
    private static boolean haveShared(List<DefaultMQPushConsumer> consumers, Set<MessageQueue> queues) {
        return consumers.stream().allMatch(each -> {
            var own = pulled(each);
            // The table has the queue of the group's retries, too.
            long locked = queues.stream().filter(queue -> own.containsKey(queue) && own.get(queue).isLocked()).count();
            return locked == queues.size() / CONSUMERS;
        });
    }

    /** The queues of a consumer, with what it has pulled of each. */
    private static Map<MessageQueue, ProcessQueue> pulled(DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
    }

    private static void check(AtomicLongArray last, byte[] body) {
        long number = ByteBuffer.wrap(body).getLong();
        int key = (int) (number % KEYS);
        if (number <= last.getAndSet(key, number)) throw new IllegalStateException("message " + number + " came after a later one of its key");
    }
}
