//! Kernels: the name of a kernel says what it does with GPU time.
//!
//! | name | behaviour |
//! |---|---|
//! | `spin_<n>us`, `spin_<n>ms` | runs for exactly that long |
//! | `lognormal_<mean>us_<sigma>` | drawn for each launch: that mean, sigma of the logarithm |
//! | `wave_<n>us` | runs that long for each wave of its grid |
//! | `alternating_<a>us_<b>ms_<n>` | in its context, n launches run for a, the next n for b, ... |
//! | `persistent` | never ends |
//! | `wait_peer_<k>` | waits for a second kernel of this name, anywhere; then the default time |
//! | `ncclDevKernel_<...>` | waits for one on each GPU of its process; then the default time |
//! | anything else | the default time, `CGPU_SIM_KERNEL_US` |
//!
//! C++ names are demangled as far as `_Z<length><name>` goes.

use cgpu_shm::units::Nanos;

/// A kernel's behaviour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    /// Runs for that long; `None`: the machine's default time.
    Spin(Option<Nanos>),
    /// Drawn for each launch.
    Lognormal {
        /// Mean of the distribution itself.
        mean: Nanos,
        /// Standard deviation of its logarithm.
        sigma: f64,
    },
    /// Runs that long for each wave of its grid.
    Wave(Nanos),
    /// Has one of two lengths, by the number of the launch in its context.
    Alternating {
        /// The lengths.
        lengths: [Nanos; 2],
        /// Consecutive launches of the same length.
        run: u64,
    },
    /// Never ends.
    Persistent,
    /// Spins until the second kernel with this key has started.
    WaitPeer(u64),
    /// Spins until as many kernels of this name have started as its process has GPUs. The key is
    /// derived from the name.
    Collective(u64),
}

impl Kernel {
    /// Parses a name. Every name is a kernel.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let name = demangled(name);
        if let Some(length) = name.strip_prefix("spin_").and_then(span) {
            return Self::Spin(Some(length));
        }
        if let Some((mean, sigma)) =
            name.strip_prefix("lognormal_").and_then(|rest| rest.split_once('_'))
            && let (Some(mean), Ok(sigma)) = (span(mean), sigma.parse::<f64>())
            && (0.0..=4.0).contains(&sigma)
        {
            return Self::Lognormal { mean, sigma };
        }
        if let Some(length) = name.strip_prefix("wave_").and_then(span) {
            return Self::Wave(length);
        }
        if let Some([a, b, run]) = name.strip_prefix("alternating_").and_then(parts)
            && let (Some(a), Some(b), Ok(run @ 1..)) = (span(a), span(b), run.parse())
        {
            return Self::Alternating { lengths: [a, b], run };
        }
        if let Some(key) = name.strip_prefix("wait_peer_").and_then(|key| key.parse().ok()) {
            return Self::WaitPeer(key);
        }
        if name.starts_with("ncclDevKernel_") {
            return Self::Collective(name.bytes().fold(0, |key, byte| mix(key ^ u64::from(byte))));
        }
        if name == "persistent" { Self::Persistent } else { Self::Spin(None) }
    }

    /// Applies the number of waves of the grid, at least one.
    #[must_use]
    pub fn in_waves(self, waves: u64) -> Self {
        match self {
            Self::Wave(length) => {
                Self::Spin(Some(Nanos(length.0.saturating_mul(waves.max(1)).min(NEVER.0 - 1))))
            }
            kernel => kernel,
        }
    }

    /// Applies the number of the launch in its context.
    #[must_use]
    pub fn at_launch(self, number: u64) -> Self {
        match self {
            Self::Alternating { lengths: [a, b], run } => {
                Self::Spin(Some(if (number / run).is_multiple_of(2) { a } else { b }))
            }
            kernel => kernel,
        }
    }

    /// Returns how long one launch computes, given the default time and a seed for draws.
    #[must_use]
    pub fn duration(self, default: Nanos, seed: u64) -> Nanos {
        match self {
            Self::Spin(length) => length.unwrap_or(default),
            Self::Lognormal { mean, sigma } => lognormal(mean, sigma, seed),
            Self::Wave(length) | Self::Alternating { lengths: [length, _], .. } => length,
            Self::Persistent => NEVER,
            Self::WaitPeer(_) | Self::Collective(_) => default,
        }
    }
}

/// The length of a kernel that never ends: 146 years.
pub const NEVER: Nanos = Nanos(1 << 62);

/// Multiplies a length by a random factor of mean 1 whose logarithm has the standard deviation
/// `noise`, in millionths. [`NEVER`] stays.
#[must_use]
pub fn noisy(length: Nanos, noise: u64, seed: u64) -> Nanos {
    if noise == 0 || length >= NEVER {
        return length;
    }
    #[allow(clippy::cast_precision_loss)] // at most a few millions
    let sigma = noise as f64 / 1e6;
    // A different draw from the length's own.
    lognormal(length, sigma, mix(seed ^ 0x6e6f_6973_6500))
}

/// Parses `60us`, `5ms`.
fn span(text: &str) -> Option<Nanos> {
    let number =
        |suffix| text.strip_suffix(suffix)?.parse::<u64>().ok().filter(|&n| n <= 3_600_000_000);
    number("us").map(Nanos::from_micros).or_else(|| number("ms").map(Nanos::from_millis))
}

/// Splits at underscores into three parts.
fn parts(text: &str) -> Option<[&str; 3]> {
    text.split('_').collect::<Vec<_>>().try_into().ok()
}

/// Demangles: `_Z9spin_60us...` is `spin_60us`.
fn demangled(name: &str) -> &str {
    let Some(rest) = name.strip_prefix("_Z") else { return name };
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    rest[..digits]
        .parse()
        .ok()
        .and_then(|length: usize| rest[digits..].get(..length))
        .unwrap_or(name)
}

/// Mixes a state (the finaliser of splitmix64): each output bit depends on each input bit.
#[must_use]
pub fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

/// Draws exp(N(mu, sigma)) with mu such that the mean is `mean`; the normal draw is Box-Muller.
fn lognormal(mean: Nanos, sigma: f64, seed: u64) -> Nanos {
    let unit = |draw: u64| {
        // 53 bits make a fraction in (0, 1] exactly.
        #[allow(clippy::cast_precision_loss)]
        let fraction = ((draw >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        fraction
    };
    // The system's functions are in a library of their own, which the simulated driver would need.
    let normal = (-2.0 * libm::log(unit(mix(seed)))).sqrt()
        * libm::cos(core::f64::consts::TAU * unit(mix(seed ^ u64::MAX)));
    #[allow(clippy::cast_precision_loss)] // at most an hour of nanoseconds
    let drawn = mean.0 as f64 * libm::exp(sigma * normal - sigma * sigma / 2.0);
    // Positive, and below e^36 times the mean at sigma 4 and nine standard deviations; the cast
    // saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let drawn = drawn as u64;
    Nanos(drawn.clamp(1, NEVER.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_name_selects_the_behaviour() {
        assert_eq!(Kernel::named("spin_60us"), Kernel::Spin(Some(Nanos::from_micros(60))));
        assert_eq!(Kernel::named("spin_5ms"), Kernel::Spin(Some(Nanos::from_millis(5))));
        assert_eq!(Kernel::named("_Z9spin_60usPfi"), Kernel::Spin(Some(Nanos::from_micros(60))));
        assert_eq!(
            Kernel::named("lognormal_100us_0.8"),
            Kernel::Lognormal { mean: Nanos::from_micros(100), sigma: 0.8 }
        );
        assert_eq!(Kernel::named("wave_10us"), Kernel::Wave(Nanos::from_micros(10)));
        let lengths = [Nanos::from_micros(10), Nanos::from_millis(5)];
        assert_eq!(
            Kernel::named("alternating_10us_5ms_3"),
            Kernel::Alternating { lengths, run: 3 }
        );
        assert_eq!(Kernel::named("persistent"), Kernel::Persistent);
        assert_eq!(Kernel::named("wait_peer_7"), Kernel::WaitPeer(7));
        assert!(matches!(
            Kernel::named("ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
            Kernel::Collective(_)
        ));
        for plain in [
            "gemm",
            "spin_",
            "spin_xus",
            "spin_60",
            "lognormal_5us",
            "lognormal_5us_x",
            "wave_",
            "wave_5",
            "alternating_5us_5ms",
            "alternating_5us_5ms_0",
            "alternating_5us_5ms_1_1",
            "wait_peer_",
            "_Z",
            "_Z99x",
            "",
        ] {
            assert_eq!(Kernel::named(plain), Kernel::Spin(None), "{plain}");
        }
    }

    #[test]
    fn wave_kernel_length_grows_with_waves() {
        let wave = Kernel::named("wave_10us");
        for (waves, us) in [(0, 10), (1, 10), (2, 20), (76, 760)] {
            assert_eq!(wave.in_waves(waves), Kernel::Spin(Some(Nanos::from_micros(us))), "{waves}");
        }
        assert!(wave.in_waves(u64::MAX).duration(Nanos::ZERO, 0) < NEVER);
        let spin = Kernel::named("spin_10us");
        assert_eq!(spin.in_waves(76), spin);
    }

    #[test]
    fn alternating_kernel_changes_length_after_each_run() {
        let took = |name: &str| -> Vec<u64> {
            let kernel = Kernel::named(name);
            (0..7)
                .map(|number| kernel.at_launch(number).duration(Nanos::ZERO, 0).0 / 1000)
                .collect()
        };
        assert_eq!(took("alternating_10us_5ms_1"), [10, 5000, 10, 5000, 10, 5000, 10]);
        assert_eq!(took("alternating_10us_5ms_3"), [10, 10, 10, 5000, 5000, 5000, 10]);
    }

    #[test]
    fn noise_keeps_the_mean_and_is_reproducible() {
        let length = Nanos::from_micros(60);
        let draw = |seed| noisy(length, 20_000, seed).0;
        let mean = (0..100_000).map(draw).sum::<u64>() / 100_000;
        assert!((59_900..60_100).contains(&mean), "{mean}");
        let spread = (0..10_000).filter(|&seed| draw(seed).abs_diff(60_000) < 1_200).count();
        assert!(
            (6_400..7_200).contains(&spread),
            "{spread} of 10000 within one standard deviation"
        );
        assert_eq!(draw(7), draw(7));
        assert_eq!(noisy(length, 0, 7), length);
        assert_eq!(noisy(NEVER, 20_000, 7), NEVER);
    }

    #[test]
    fn lognormal_draws_have_the_mean_and_are_reproducible() {
        let kernel = Kernel::named("lognormal_100us_0.8");
        let draw = |seed| kernel.duration(Nanos::ZERO, seed).0;
        let mean = (0..100_000).map(draw).sum::<u64>() / 100_000;
        assert!((98_000..102_000).contains(&mean), "{mean}");
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
