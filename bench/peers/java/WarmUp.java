/**
 * Repeats work in slices until its rate is steady, by the rule of bench/warm_up.py: two slices in a row are
 * less than 5 % faster than the last one that was 5 % faster than all before.
 */
final class WarmUp {
    static final double SLICE_SECONDS = 2.0, GAIN = 1.05;
    static final int CALM_SLICES = 2;

    interface Slice {
        /** Works for some seconds; returns the meter that counted. */
        Meter run(double seconds) throws Exception;
    }

    /** Returns the seconds that were worked: `least` or more, `most` at most. */
    static double untilSteady(double least, double most, boolean isRead, Slice slice) throws Exception {
        double reference = 0, worked = 0;
        int calm = 0;
        for (int left = (int) Math.round(most / SLICE_SECONDS); left > 0; left--) {
            Meter meter = slice.run(SLICE_SECONDS);
            double seconds = meter.seconds(isRead), rate = meter.messages() / seconds;
            worked += meter.messages() == 0 ? SLICE_SECONDS : seconds;
            calm++;
            if (rate > 0 && rate >= GAIN * reference) {
                reference = rate;
                calm = 0;
            }
            if (worked >= most || (worked >= least && calm >= CALM_SLICES)) break;
        }
        return worked;
    }
}
