import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;

/**
 * Counts as the Meter of bench/system.py does: acknowledgements after the warm-up and before the
 * deadline. On Linux System.nanoTime is Python's time.perf_counter, in nanoseconds.
 */
final class Meter {
    final int size;
    private final double seconds;
    private boolean isWaiting;
    private long start, deadline;
    private long messages, last, messagesMax = Long.MAX_VALUE;
    /** Of a meter that ends with a number of messages: those counted in each tenth of a second. */
    private List<Integer> counts = new ArrayList<>();
    private int latencyCount;
    private long[] latencies = new long[1 << 16];

    Meter(int size, double seconds, double warmUpSeconds) {
        this.size = size;
        this.seconds = seconds;
        start = System.nanoTime() + (long) (warmUpSeconds * 1e9);
        deadline = start + (long) (seconds * 1e9);
        last = start;
    }

    /** Time in which the first delivery must come. Of a consumer's first pulls, about one in five is
     *  answered by nothing for 30 s, the client's limit: such a read is given up. */
    private static final long FIRST_NANOS_MAX = 10_000_000_000L;

    /** A meter whose time begins with the first delivery, which is not counted: joining a group is
     *  left out of a rate. */
    static Meter fromFirstDelivery(int size, double seconds) {
        Meter meter = new Meter(size, seconds, 0);
        meter.isWaiting = true;
        meter.deadline += FIRST_NANOS_MAX;
        return meter;
    }

    /** A meter without a warm-up whose work ends with that number of messages. */
    static Meter untilMessages(int size, long messages, double secondsMax) {
        Meter meter = new Meter(size, secondsMax, 0);
        meter.messagesMax = messages;
        return meter;
    }

    synchronized boolean isOver() {
        return messages >= messagesMax || System.nanoTime() - deadline >= 0;
    }

    synchronized long messages() {
        return messages;
    }

    synchronized void onAck(int count, long sentAt) {
        long now = System.nanoTime();
        if (now - start >= 0 && now - deadline < 0) {
            messages += count;
            if (latencyCount == latencies.length)
                latencies = Arrays.copyOf(latencies, latencyCount * 2);
            latencies[latencyCount++] = now - sentAt;
            last = now;
            if (messagesMax < Long.MAX_VALUE) {
                int step = (int) ((now - start) / 100_000_000);
                while (counts.size() <= step) counts.add(0);
                counts.set(step, counts.get(step) + count);
            }
        }
    }

    synchronized void onDelivery(int count) {
        long now = System.nanoTime();
        if (isWaiting) {
            isWaiting = false;
            start = last = now;
            deadline = now + (long) (seconds * 1e9);
            return;
        }
        if (now - start >= 0 && now - deadline < 0) {
            messages += count;
            last = now;
        }
    }

    /** Length of the measured part; `untilLast` ends it at the last event. */
    synchronized double seconds(boolean untilLast) {
        return Math.max(((untilLast || messagesMax < Long.MAX_VALUE ? last : deadline) - start) / 1e9, 1e-9);
    }

    /** The fields of a Sample as a JSON object; `untilLast` ends the measurement at the last event.
     *  `more` are further fields, each after a comma. */
    synchronized String json(boolean untilLast, String settings, String more) {
        if (messages == 0) throw new IllegalStateException("nothing was acknowledged in the measured part");
        double seconds = seconds(untilLast);
        long[] sorted = Arrays.copyOf(latencies, latencyCount);
        Arrays.sort(sorted);
        return String.format(Locale.ROOT,
            "{\"messages\": %d, \"size\": %d, \"seconds\": %.6f, \"p50_ms\": %s, \"p99_ms\": %s, \"began\": %.6f, \"settings\": \"%s\", \"counts\": %s%s}",
            messages, size, seconds, percentile(sorted, 0.50), percentile(sorted, 0.99), start / 1e9, settings, counts, more);
    }

    private static String percentile(long[] sorted, double fraction) {
        if (sorted.length == 0) return "null";
        int rank = (int) Math.max(0, Math.ceil(sorted.length * fraction) - 1);
        return String.format(Locale.ROOT, "%.4f", sorted[rank] / 1e6);
    }
}
