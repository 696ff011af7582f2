import java.util.Arrays;
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
    private long messages, last;
    private int latencyCount;
    private long[] latencies = new long[1 << 16];

    Meter(int size, double seconds, double warmUpSeconds) {
        this.size = size;
        this.seconds = seconds;
        start = System.nanoTime() + (long) (warmUpSeconds * 1e9);
        deadline = start + (long) (seconds * 1e9);
        last = start;
    }

    /** A meter whose time begins with the first delivery, which is not counted: joining a group is
     *  left out of a rate. */
    static Meter fromFirstDelivery(int size, double seconds) {
        Meter meter = new Meter(size, seconds, 0);
        meter.isWaiting = true;
        meter.deadline += 60_000_000_000L;
        return meter;
    }

    synchronized boolean isOver() {
        return System.nanoTime() - deadline >= 0;
    }

    synchronized void onAck(int count, long sentAt) {
        long now = System.nanoTime();
        if (now - start >= 0 && now - deadline < 0) {
            messages += count;
            if (latencyCount == latencies.length)
                latencies = Arrays.copyOf(latencies, latencyCount * 2);
            latencies[latencyCount++] = now - sentAt;
            last = now;
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

    /** The fields of a Sample as a JSON object; `untilLast` ends the measurement at the last event. */
    synchronized String json(boolean untilLast, String settings) {
        if (messages == 0) throw new IllegalStateException("nothing was acknowledged in the measured part");
        double seconds = Math.max(((untilLast ? last : deadline) - start) / 1e9, 1e-9);
        long[] sorted = Arrays.copyOf(latencies, latencyCount);
        Arrays.sort(sorted);
        return String.format(Locale.ROOT,
            "{\"messages\": %d, \"size\": %d, \"seconds\": %.6f, \"p50_ms\": %s, \"p99_ms\": %s, \"began\": %.6f, \"settings\": \"%s\"}",
            messages, size, seconds, percentile(sorted, 0.50), percentile(sorted, 0.99), start / 1e9, settings);
    }

    private static String percentile(long[] sorted, double fraction) {
        if (sorted.length == 0) return "null";
        int rank = (int) Math.max(0, Math.ceil(sorted.length * fraction) - 1);
        return String.format(Locale.ROOT, "%.4f", sorted[rank] / 1e6);
    }
}
