import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The load for RocketMQ, over its remoting protocol: RocketLoad OPERATION name=value...
 *
 * `create` makes the topics and prints {"master": ADDRESS}. The operations of bench/system.py
 * (produce, single, consume, pop, in-order) print a Sample as JSON. Each works on the topic "warm" first,
 * until its rate is steady (WarmUp.java), so that the JVMs compile what comes, then for `seconds` on the topic
 * "bench". `consume` and `pop` read what `produce` left on both topics; `in-order` fills both by itself.
 * `fill` is `produce` until `messages` are stored; Many.java has `spread` and `waiting`.
 *
 * `steadily` sends until it is killed, and prints `acknowledged` or `refused` for each attempt.
 *
 * `pop` speaks the client library's pop protocol directly (popMessageAsync, batchAckMessageAsync).
 * A broker locks a queue while one pop reads it, so there is one pop in flight for each queue.
 */
public class RocketLoad {
    static final String TOPIC = "bench", WARM = "warm", GROUP = "bench";
    static final int MOST_A_POP = 32;
    static final int PULL_BATCH = 1000;
    /** Groups of orderly consumers that are tried: see Meter.FIRST_NANOS_MAX. */
    static final int TRIES = 4;
    static final Set<String> READS = Set.of("consume", "pop", "in-order");
    static final Map<String, String> given = new HashMap<>();
    static final AtomicLong refused = new AtomicLong();

    static int number(String name) { return Integer.parseInt(given.get(name)); }
    static double real(String name) { return Double.parseDouble(given.get(name)); }
    static String nameServers() { return given.get("names"); }

    public static void main(String[] arguments) {
        try {
            run(arguments);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            // The benchmark shows the end of what is said here.
            for (Throwable each = error; each != null; each = each.getCause()) System.err.println(each);
            System.exit(1);
        }
    }

    static void run(String[] arguments) throws Exception {
        for (int i = 1; i < arguments.length; i++) {
            int at = arguments[i].indexOf('=');
            given.put(arguments[i].substring(0, at), arguments[i].substring(at + 1));
        }
        System.setProperty("rocketmq.client.logUseSlf4j", "false");
        if (arguments[0].equals("create")) {
            System.out.println("{\"master\": \"" + create() + "\"}");
            return;
        }
        if (arguments[0].equals("steadily")) sendSteadily();
        if (arguments[0].equals("spread") || arguments[0].equals("waiting")) {
            System.out.println(arguments[0].equals("spread") ? Many.spread() : Many.waiting());
            return;
        }
        int size = number("size");
        double seconds = real("seconds");
        boolean isRead = READS.contains(arguments[0]);
        String warmed = ", \"warmed\": " + Arrays.toString(warmUp(arguments[0], size));
        refused.set(0);
        String settings = switch (arguments[0]) {
            case "produce", "fill" -> number("window") + " in flight";
            case "single" -> "synchronous send";
            case "consume" -> "DefaultLitePullConsumer, assigned queues, pull batch " + PULL_BATCH;
            case "in-order" -> Ordered.CONSUMERS + " orderly push consumers, " + Ordered.BATCH + " messages at most at a time, offsets stored every 5 s";
            default -> "one pop of " + MOST_A_POP + " in flight a queue, each acknowledged by one batch";
        };
        if (arguments[0].equals("in-order")) Ordered.fill(TOPIC, number("batch"), new Meter(size, real("fill"), 0));
        Meter done;
        int tries = 0;
        do {
            done = work(arguments[0], TOPIC, isRead ? Meter.fromFirstDelivery(size, seconds)
                : arguments[0].equals("fill") ? Meter.untilMessages(size, number("messages"), seconds)
                : new Meter(size, seconds, Math.min(1, seconds / 4)));
        } while (arguments[0].equals("in-order") && done.messages() == 0 && ++tries < TRIES);
        if (tries > 0) settings += ", at try " + (tries + 1) + " as no message came within 10 s";
        if (refused.get() > 0) settings += ", " + refused.get() + " refused as busy and sent again";
        System.out.println(done.json(isRead, settings, warmed));
    }

    /** Works on the topic "warm" until the rate is steady; returns the seconds of sends and of reads. */
    static double[] warmUp(String operation, int size) throws Exception {
        WarmUp.Slice sends = seconds -> {
            Meter meter = new Meter(size, seconds, 0);
            switch (operation) {
                case "in-order" -> Ordered.fill(WARM, number("batch"), meter);
                // One message after the other calls the code too rarely to have it compiled.
                case "single" -> send(WARM, 100, 64, meter);
                default -> send(WARM, number("batch"), number("window"), meter);
            }
            return meter;
        };
        // A consume and a pop read what a produce with its own warm-up has stored.
        boolean isFilled = READS.contains(operation) && !operation.equals("in-order");
        double sent = isFilled ? 0 : WarmUp.untilSteady(real("warm-least"), real("warm-most"), false, sends);
        if (operation.equals("single"))
            sent += WarmUp.untilSteady(real("warm-single-least"), real("warm-single-most"), false,
                seconds -> work("single", WARM, new Meter(size, seconds, 0)));
        if (!READS.contains(operation)) return new double[] {sent, 0};
        double read = WarmUp.untilSteady(real("warm-read-least"), real("warm-read-most"), true,
            seconds -> work(operation, WARM, Meter.fromFirstDelivery(size, seconds)));
        return new double[] {sent, read};
    }

    /** One operation on one topic. */
    static Meter work(String operation, String topic, Meter meter) throws Exception {
        switch (operation) {
            case "produce", "fill" -> send(topic, number("batch"), number("window"), meter);
            case "single" -> single(topic, meter);
            case "consume" -> consume(topic, meter);
            case "pop" -> pop(topic, meter);
            case "in-order" -> Ordered.consume(topic, meter);
            default -> throw new IllegalArgumentException(operation);
        }
        return meter;
    }

    /** Wait for three replicas in sync, make the topics and the group; returns the master's address. */
    static String create() throws Exception {
        DefaultMQAdminExt admin = admin();
        String master = null;
        for (long end = System.nanoTime() + 90_000_000_000L; ; Thread.sleep(500)) {
            try {
                for (var each : admin.examineBrokerClusterInfo().getBrokerAddrTable().values())
                    if (each.getBrokerAddrs().size() == 3) master = each.getBrokerAddrs().get(0L);
                if (master != null && admin.getBrokerHAStatus(master).getInSyncSlaveNums() == 2) break;
            } catch (Exception error) { // There is no master yet, or the name servers do not know it.
                if (System.nanoTime() > end) throw error;
            }
            if (System.nanoTime() > end) throw new IllegalStateException("no master with three replicas in sync");
        }
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName(GROUP);
        admin.createAndUpdateSubscriptionGroupConfig(master, group);
        for (String topic : List.of(TOPIC, WARM)) createTopic(master, topic, number("queues"));
        return master;
    }

    static void createTopic(String master, String topic, int queues) throws Exception {
        TopicConfig config = new TopicConfig(topic, queues, queues);
        config.getAttributes().put("+message.type", "NORMAL");
        admin().createAndUpdateTopicConfig(master, config);
        for (long end = System.nanoTime() + 60_000_000_000L; ; Thread.sleep(300))
            try {
                if (!admin().examineTopicRouteInfo(topic).getQueueDatas().isEmpty()) break;
            } catch (Exception error) { // The name servers hear of the topic a little later.
                if (System.nanoTime() > end) throw error;
            }
    }

    /** Wait until each broker has the topic. */
    static void waitForReplicas(String topic) throws Exception {
        for (var group : admin().examineBrokerClusterInfo().getBrokerAddrTable().values())
            for (String address : group.getBrokerAddrs().values())
                for (long end = System.nanoTime() + 60_000_000_000L; ; Thread.sleep(100))
                    try {
                        admin().examineTopicConfig(address, topic);
                        break;
                    } catch (Exception error) {
                        if (System.nanoTime() > end) throw error;
                    }
    }

    static DefaultMQProducer producer() throws Exception { return producer(30_000); }

    /** `routeMillis`: how often it asks the name servers for new masters; the default is 30 s. */
    static DefaultMQProducer producer(int routeMillis) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("load");
        producer.setPollNameServerInterval(routeMillis);
        producer.setNamesrvAddr(nameServers());
        producer.setInstanceName("load" + System.nanoTime());
        producer.setMaxMessageSize(4 << 20);
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        return producer;
    }

    static List<Message> messages(String topic, byte[] body, int batch) {
        List<Message> made = new ArrayList<>(batch);
        for (int i = 0; i < batch; i++) made.add(new Message(topic, body));
        return made;
    }

    static void send(String topic, int batch, int window, Meter meter) throws Exception {
        send(topic, batch, window, meter, null);
    }

    /** `window` batches in flight; each goes to the next one of `queues`, or, if null, where the producer chooses. */
    static void send(String topic, int batch, int window, Meter meter, List<MessageQueue> queues) throws Exception {
        byte[] body = new byte[meter.size];
        new Random(1).nextBytes(body);
        Semaphore free = new Semaphore(window);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        DefaultMQProducer producer = producer();
        for (long number = 0; !meter.isOver(); number++) {
            free.acquire();
            if (failure.get() != null) throw new RuntimeException(failure.get());
            MessageQueue queue = queues == null ? null : queues.get((int) (number % queues.size()));
            sendOne(producer, topic, body, batch, meter, free, failure, System.nanoTime(), queue);
        }
        free.acquire(window);
        producer.shutdown();
    }

    static void sendOne(DefaultMQProducer producer, String topic, byte[] body, int batch, Meter meter,
            Semaphore free, AtomicReference<Throwable> failure, long sentAt, MessageQueue queue) throws Exception {
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                // Anything but SEND_OK (FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE) is not durable.
                if (result.getSendStatus() == SendStatus.SEND_OK) meter.onAck(batch, sentAt);
                else failure.set(new IllegalStateException("" + result.getSendStatus()));
                free.release();
            }

            @Override
            public void onException(Throwable error) {
                if (("" + error.getMessage()).contains("busy") && !meter.isOver()) {
                    refused.incrementAndGet();
                    try {
                        sendOne(producer, topic, body, batch, meter, free, failure, sentAt, queue);
                        return;
                    } catch (Exception again) {
                        failure.set(again);
                    }
                } else if (!meter.isOver()) failure.set(error);
                free.release();
            }
        };
        if (queue != null) producer.send(messages(topic, body, batch), queue, callback, 10_000);
        else if (batch > 1) producer.send(messages(topic, body, batch), callback, 10_000);
        else producer.send(new Message(topic, body), callback, 10_000);
    }

    static void single(String topic, Meter meter) throws Exception {
        byte[] body = new byte[meter.size];
        DefaultMQProducer producer = producer();
        while (!meter.isOver()) {
            long sentAt = System.nanoTime();
            SendResult result = producer.send(new Message(topic, body));
            if (result.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException("" + result.getSendStatus());
            meter.onAck(1, sentAt);
        }
        producer.shutdown();
    }

    /**
     * Sends to queue 0 until it is killed, one message after the other. Replicas fetch the topics from the
     * master every 10 s, and a master that does not know a topic refuses its messages for good: the topic
     * is lost with the master that has it alone. So the sends begin when all brokers have it.
     */
    static void sendSteadily() throws Exception {
        waitForReplicas(TOPIC);
        DefaultMQProducer producer = producer(1000);
        while (true)
            try {
                MessageQueue queue = producer.fetchPublishMessageQueues(TOPIC).get(0);
                if (producer.send(new Message(TOPIC, new byte[200]), queue, 3000).getSendStatus() == SendStatus.SEND_OK)
                    System.out.println("acknowledged");
            } catch (Exception error) {
                System.out.println("refused " + error.getMessage());
                Thread.sleep(10);
            }
    }

    static void consume(String topic, Meter meter) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("reader-" + topic);
        consumer.setNamesrvAddr(nameServers());
        consumer.setInstanceName("reader" + System.nanoTime());
        consumer.setPullBatchSize(PULL_BATCH);
        consumer.setPullThresholdForQueue(50_000);
        consumer.setPullThresholdForAll(200_000);
        consumer.setConsumeMaxSpan(1_000_000);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        consumer.assign(queues);
        long left = 0;
        for (MessageQueue each : queues) {
            consumer.seekToBegin(each);
            left += admin().maxOffset(each);
        }
        while (left > 0 && !meter.isOver()) {
            List<MessageExt> found = consumer.poll(200);
            for (MessageExt each : found)
                if (each.getBody().length != meter.size) throw new IllegalStateException("a body of another size");
            if (!found.isEmpty()) meter.onDelivery(found.size());
            left -= found.size();
        }
        consumer.shutdown();
    }

    private static DefaultMQAdminExt shared;

    static synchronized DefaultMQAdminExt admin() throws Exception {
        if (shared == null) {
            shared = new DefaultMQAdminExt();
            shared.setNamesrvAddr(nameServers());
            shared.setInstanceName("shared" + System.nanoTime());
            shared.start();
        }
        return shared;
    }

    /** Pops until the meter is over or nothing is left; counts acknowledgements that were answered. */
    static void pop(String topic, Meter meter) throws Exception {
        DefaultMQPullConsumer client = new DefaultMQPullConsumer(GROUP);
        client.setNamesrvAddr(nameServers());
        client.setInstanceName("pop" + System.nanoTime());
        client.start();
        MQClientInstance factory = client.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
        Set<MessageQueue> queues = client.fetchSubscribeMessageQueues(topic);
        String broker = queues.iterator().next().getBrokerName();
        factory.updateTopicRouteInfoFromNameServer(topic);
        String address = factory.findBrokerAddressInPublish(broker);
        if (address == null) throw new IllegalStateException("no address of the master");
        Popper popper = new Popper(factory, broker, address, topic, meter);
        for (MessageQueue each : queues) popper.ask(each.getQueueId());
        while (!meter.isOver() && popper.empty.get() < 5 * queues.size() && popper.failure.get() == null) Thread.sleep(5);
        popper.isOver = true;
        if (popper.failure.get() != null) throw new RuntimeException(popper.failure.get());
        client.shutdown();
    }

    static final class Popper {
        final MQClientInstance factory;
        final String broker, address, topic;
        final Meter meter;
        final AtomicInteger empty = new AtomicInteger();
        final AtomicReference<Throwable> failure = new AtomicReference<>();
        volatile boolean isOver;

        Popper(MQClientInstance factory, String broker, String address, String topic, Meter meter) {
            this.factory = factory;
            this.broker = broker;
            this.address = address;
            this.topic = topic;
            this.meter = meter;
        }

        void ask(int queue) {
            if (isOver || meter.isOver()) return;
            PopMessageRequestHeader header = new PopMessageRequestHeader();
            header.setConsumerGroup(GROUP);
            header.setTopic(topic);
            header.setQueueId(queue);
            header.setMaxMsgNums(MOST_A_POP);
            header.setInvisibleTime(60_000);
            header.setPollTime(200);
            header.setBornTime(System.currentTimeMillis());
            header.setInitMode(0);
            header.setExpType("TAG");
            header.setExp("*");
            header.setOrder(false);
            header.setBrokerName(broker);
            try {
                factory.getMQClientAPIImpl().popMessageAsync(broker, address, header, 10_000, new PopCallback() {
                    @Override
                    public void onSuccess(PopResult result) {
                        List<MessageExt> found = result.getMsgFoundList();
                        if (found == null || found.isEmpty()) empty.incrementAndGet();
                        else {
                            empty.set(0);
                            acknowledge(found);
                        }
                        ask(queue);
                    }

                    @Override
                    public void onException(Throwable error) {
                        if (!isOver && !meter.isOver()) failure.set(error);
                    }
                });
            } catch (Exception error) {
                if (!isOver) failure.set(error);
            }
        }

        void acknowledge(List<MessageExt> found) {
            List<String> receipts = new ArrayList<>(found.size());
            for (MessageExt each : found) receipts.add(each.getProperty(MessageConst.PROPERTY_POP_CK));
            int count = found.size();
            try {
                factory.getMQClientAPIImpl().batchAckMessageAsync(address, 10_000, new AckCallback() {
                    @Override
                    public void onSuccess(AckResult result) {
                        if (result.getStatus() == AckStatus.OK) meter.onDelivery(count);
                        else failure.set(new IllegalStateException("ack: " + result.getStatus()));
                    }

                    @Override
                    public void onException(Throwable error) {
                        if (!isOver && !meter.isOver()) failure.set(error);
                    }
                }, topic, GROUP, receipts);
            } catch (Exception error) {
                if (!isOver) failure.set(error);
            }
        }
    }
}
