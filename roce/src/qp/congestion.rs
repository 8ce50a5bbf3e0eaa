//! What a queue pair knows of its path: how long answers take, and how many packets it carries.
//!
//! Guarantees: the window is never below one packet and never above the configured maximum; it falls
//! when packets are lost or the network marks them, once per cause, and rises with every window that is
//! acknowledged. Notifications that anybody may have sent leave a quarter of the maximum.
//!
//! The window follows DCQCN's shape ("Congestion Control for Large-Scale RDMA Deployments", SIGCOMM
//! 2015), counted in packets and round trips instead of rates and timers: after a cut it goes half of
//! the way back to where it was with each window, then probes for more step by step.

use std::time::{Duration, Instant};

use crate::endpoint::EndpointConfig;
use crate::wire::Psn;

/// A loss or a mark leaves at least so many packets, if the configuration allows that many; only
/// silence of the peer leaves less.
const WINDOW_MIN: u32 = 4;

/// The full estimate of congestion: every recent window had a mark.
const ALPHA_ONE: u32 = 1 << 10;

/// How fast the estimate of congestion follows what happens: 1/16 per window, as DCQCN's g.
const ALPHA_SHIFT: u32 = 4;

/// The window's step beyond its target is the maximum divided by this.
const STEPS: u32 = 32;

/// Marks within this time, or within a round trip, have one cause.
const MARK_PAUSE: Duration = Duration::from_micros(50);

/// A notification about a packet that left so many windows ago comes too late.
const LATELY_WINDOWS: u32 = 4;

/// Notifications without a number leave at least the maximum divided by this: a forger costs a queue pair no more.
const UNNUMBERED_LEAVES: u32 = 4;

/// How it is known that the network marked a packet of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The packet is named by its number, or arrived here with the mark.
    Known,
    /// The peer says so without naming a packet. Whoever knows the queue pair's number can say that in its name.
    Unnumbered,
}

impl Mark {
    /// What a congestion notification with this sequence number tells, when `high` is one past the latest that was
    /// sent. It is forged, or too late, if it names a packet that did not leave a short while ago.
    ///
    /// Network cards send the number 0, as the annex's table of the notification has it (A17.9.3); this
    /// implementation sends that of the packet.
    pub(super) fn of_notification(psn: Psn, high: Psn, config: &EndpointConfig) -> Option<Self> {
        let lately = config.max_unacked_packets.saturating_mul(LATELY_WINDOWS);
        if psn != high && high.distance_from(psn) <= lately {
            return Some(Self::Known);
        }
        (psn == Psn::new(0)).then_some(Self::Unnumbered)
    }
}

/// Smoothed round trip, as in RFC 6298: one sample at a time, none from repeated packets.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    sample: Option<(Psn, Instant)>,
    smoothed: Option<Duration>,
    variation: Duration,
}

impl RoundTrip {
    /// A packet leaves for the first time, and its acknowledgement will tell.
    #[inline]
    pub(super) fn begin(&mut self, psn: Psn, now: Instant) {
        if self.sample.is_none() {
            self.sample = Some((psn, now));
        }
    }

    /// Everything before `unacked` is acknowledged.
    pub(super) fn end(&mut self, unacked: Psn, now: Instant) {
        if let Some((psn, sent)) = self.sample
            && unacked.diff(psn) > 0
        {
            self.sample = None;
            self.measured(now.saturating_duration_since(sent));
        }
    }

    /// Packets are repeated: which one an answer is for cannot be told any more.
    pub(super) fn forget_sample(&mut self) {
        self.sample = None;
    }

    fn measured(&mut self, sample: Duration) {
        match self.smoothed {
            None => {
                self.smoothed = Some(sample);
                self.variation = sample / 2;
            }
            Some(smoothed) => {
                let error = smoothed.abs_diff(sample);
                self.variation = (self.variation * 3 + error) / 4;
                self.smoothed = Some((smoothed * 7 + sample) / 8);
            }
        }
    }

    /// How long one takes, once that is known.
    #[inline]
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// How long an answer may take before it counts as missing.
    #[inline]
    pub(super) fn timeout(&self, config: &EndpointConfig) -> Duration {
        let Some(smoothed) = self.smoothed else {
            return config.ack_timeout;
        };
        (smoothed + self.variation * 4).clamp(config.ack_timeout_min, config.ack_timeout_max)
    }

    /// How long to wait before one packet is sent again to learn whether the last ones were lost.
    #[inline]
    pub(super) fn probe_timeout(&self, config: &EndpointConfig) -> Duration {
        let timeout = self.timeout(config);
        match self.smoothed {
            Some(smoothed) => (smoothed * 2).max(config.ack_timeout_min / 2).min(timeout),
            None => timeout,
        }
    }
}

/// How many sequence numbers may be unacknowledged now.
#[derive(Debug)]
pub(super) struct Window {
    size: u32,
    /// Where the window was, or nearly, before it was cut: it goes back there quickly.
    target: u32,
    /// Acknowledged since the window grew last.
    acknowledged: u32,
    /// The share of recent windows with marks, in 1/[`ALPHA_ONE`].
    alpha: u32,
    /// When a mark cut the window last, if it did since it grew.
    marked: Option<Instant>,
}

impl Window {
    pub(super) fn new() -> Self {
        Self {
            size: u32::MAX,
            target: u32::MAX,
            acknowledged: 0,
            alpha: ALPHA_ONE,
            marked: None,
        }
    }

    /// Packets that may be unacknowledged.
    #[inline]
    pub(super) fn size(&self, config: &EndpointConfig) -> u32 {
        self.size.min(config.max_unacked_packets)
    }

    /// Packets were lost, and the peer said so: the usual reason is a full buffer, which repeating a
    /// whole window would keep full.
    pub(super) fn lost(&mut self, config: &EndpointConfig) {
        let before = self.size(config);
        self.cut(before / 2, before - before / 4);
    }

    /// The peer is silent: begin again with one packet.
    pub(super) fn silence(&mut self, config: &EndpointConfig) {
        let before = self.size(config);
        if before > 1 {
            self.target = (before / 2).max(WINDOW_MIN);
        }
        self.size = 1;
        self.acknowledged = 0;
    }

    /// The network marked a packet: cut in proportion to how often it does. Marks of one round trip
    /// have one cause.
    pub(super) fn marked(
        &mut self,
        mark: Mark,
        now: Instant,
        round_trip: Option<Duration>,
        config: &EndpointConfig,
    ) {
        let before = self.size(config);
        let least = match mark {
            Mark::Known => 0,
            Mark::Unnumbered => config.max_unacked_packets / UNNUMBERED_LEAVES,
        };
        if before <= least {
            return;
        }
        let pause = round_trip.unwrap_or_default().max(MARK_PAUSE);
        let recently = self
            .marked
            .is_some_and(|at| now.saturating_duration_since(at) < pause);
        if recently {
            return;
        }
        self.marked = Some(now);
        let less = u64::from(before) * u64::from(self.alpha) / u64::from(2 * ALPHA_ONE);
        self.cut((before - less as u32).max(least), before);
        self.alpha += (ALPHA_ONE - self.alpha) >> ALPHA_SHIFT;
    }

    fn cut(&mut self, size: u32, target: u32) {
        self.size = size.max(WINDOW_MIN);
        self.target = target.max(self.size);
        self.acknowledged = 0;
    }

    /// So many packets were acknowledged.
    #[inline]
    pub(super) fn acknowledged(&mut self, packets: u32, config: &EndpointConfig) {
        let max = config.max_unacked_packets;
        self.acknowledged = self.acknowledged.saturating_add(packets);
        if self.acknowledged < self.size.min(max) {
            return;
        }
        self.acknowledged = 0;
        if self.marked.take().is_none() {
            self.alpha -= self.alpha >> ALPHA_SHIFT;
        }
        if self.size < self.target {
            self.size += (self.target - self.size).div_ceil(2);
        } else if self.size < max {
            self.size = (self.size + (max / STEPS).max(1)).min(max);
            self.target = self.size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EndpointConfig {
        EndpointConfig {
            max_unacked_packets: 128,
            ..EndpointConfig::default()
        }
    }

    fn windows_until_full(window: &mut Window, config: &EndpointConfig) -> u32 {
        let mut windows = 0;
        while window.size(config) < config.max_unacked_packets {
            window.acknowledged(window.size(config), config);
            windows += 1;
            assert!(windows < 1000, "it never recovers: {window:?}");
        }
        windows
    }

    #[test]
    fn a_loss_halves_the_window_and_it_comes_back() {
        let config = config();
        let mut window = Window::new();
        assert_eq!(window.size(&config), 128);
        window.lost(&config);
        assert_eq!(window.size(&config), 64);
        assert!((8..40).contains(&windows_until_full(&mut window, &config)));
        (0..100).for_each(|_| window.lost(&config));
        assert_eq!(window.size(&config), WINDOW_MIN);
    }

    #[test]
    fn silence_leaves_one_packet_and_the_first_answer_reopens_the_window() {
        let config = config();
        let mut window = Window::new();
        (0..5).for_each(|_| window.silence(&config));
        assert_eq!(window.size(&config), 1);
        window.acknowledged(1, &config);
        assert!(window.size(&config) > 16, "{window:?}");
    }

    #[test]
    fn rare_marks_cost_less_than_constant_ones() {
        let config = config();
        let now = Instant::now();
        let mut window = Window::new();
        window.marked(Mark::Known, now, None, &config);
        assert_eq!(window.size(&config), 64, "the first one counts fully");
        window.marked(Mark::Known, now + MARK_PAUSE / 2, None, &config);
        assert_eq!(window.size(&config), 64, "the same cause");
        for _ in 0..100 {
            window.acknowledged(window.size(&config), &config);
        }
        let later = now + Duration::from_secs(1);
        window.marked(Mark::Known, later, None, &config);
        assert!(window.size(&config) > 120, "{window:?}");
        for mark in 1..40 {
            window.marked(Mark::Known, later + MARK_PAUSE * mark, None, &config);
        }
        assert_eq!(window.size(&config), WINDOW_MIN);
    }

    #[test]
    fn marks_without_a_number_leave_a_quarter_and_do_not_hold_a_smaller_window_down() {
        let config = config();
        let mut now = Instant::now();
        let mut window = Window::new();
        let mut mark = |window: &mut Window| {
            now += MARK_PAUSE;
            window.marked(Mark::Unnumbered, now, None, &config);
            window.size(&config)
        };
        assert_eq!(mark(&mut window), 64, "the first one counts fully");
        for _ in 0..1000 {
            assert!(mark(&mut window) >= 32);
        }
        assert_eq!(mark(&mut window), 32);
        for _ in 0..1000 {
            window.acknowledged(window.size(&config), &config);
            assert!(mark(&mut window) >= 32);
        }
        // What losses left comes back as if nobody said anything.
        let (mut lost, mut marked) = (Window::new(), Window::new());
        for window in [&mut lost, &mut marked] {
            (0..3).for_each(|_| window.lost(&config));
        }
        assert_eq!(mark(&mut marked), 16);
        lost.acknowledged(16, &config);
        marked.acknowledged(16, &config);
        assert_eq!(lost.size(&config), marked.size(&config));
        assert!(windows_until_full(&mut marked, &config) < 60);
    }

    #[test]
    fn a_window_below_the_minimum_is_possible_by_configuration() {
        let config = EndpointConfig {
            max_unacked_packets: 2,
            ..EndpointConfig::default()
        };
        let mut window = Window::new();
        window.lost(&config);
        assert_eq!(window.size(&config), 2);
        window.silence(&config);
        assert_eq!(window.size(&config), 1);
        window.acknowledged(1, &config);
        assert_eq!(window.size(&config), 2);
    }

    #[test]
    fn waiting_follows_the_path_within_its_bounds() {
        let config = EndpointConfig::default();
        let mut trip = RoundTrip::default();
        let start = Instant::now();
        assert_eq!(trip.timeout(&config), config.ack_timeout);
        let mut measure = |micros: u64| {
            for psn in 0..50 {
                trip.begin(Psn::new(psn), start);
                trip.end(Psn::new(psn + 1), start + Duration::from_micros(micros));
            }
            (trip.timeout(&config), trip.probe_timeout(&config))
        };
        let (timeout, probe) = measure(50);
        assert_eq!(
            (timeout, probe),
            (config.ack_timeout_min, config.ack_timeout_min / 2)
        );
        let (timeout, probe) = measure(20_000);
        assert!(timeout > Duration::from_millis(20) && timeout < Duration::from_millis(60));
        assert!(probe <= timeout && probe >= Duration::from_millis(20));
        let (timeout, _) = measure(10_000_000);
        assert_eq!(timeout, config.ack_timeout_max);
    }
}
