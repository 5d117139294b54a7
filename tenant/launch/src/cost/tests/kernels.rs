//! Which launches share an estimate.

use super::*;

#[test]
fn copies_of_about_the_same_size_share_an_estimate() {
    assert_eq!(Kernel::copy(1 << 20), Kernel::copy((1 << 20) + 1000));
    assert_ne!(Kernel::copy(1 << 20), Kernel::copy(5 << 18));
    for bytes in 0..64 {
        assert_ne!(Kernel::copy(bytes), Kernel::graph(usize::try_from(bytes).expect("small")));
    }
}

#[test]
fn launches_share_an_estimate_if_their_threads_have_the_same_power_of_two() {
    let power = |threads: u64| threads.max(1).ilog2().min(SIZES as u32 - 1);
    let dimensions = [1, 2, 3, 7, 32, 100, 1024, 65_535];
    let mut shapes = Vec::new();
    for x in dimensions {
        for y in dimensions {
            for threads in [1, 32, 96, 1024] {
                shapes.push(([x, y, 1], [threads, 1, 1]));
                shapes.push(([1, x, y], [1, threads, 1]));
                shapes.push(([y, 1, x], [1, 1, threads]));
            }
        }
    }
    let volume = |of: [u32; 3]| of.map(u64::from).iter().product::<u64>();
    for (grid, block) in &shapes {
        let size = Kernel::new(7, *grid, *block).size();
        assert_eq!(size as u32, power(volume(*grid) * volume(*block)), "{grid:?} {block:?}");
    }
    assert_eq!(
        Kernel::new(7, [u32::MAX; 3], [1024; 3]).function(),
        Kernel::new(7, [1; 3], [1; 3]).function()
    );
    assert_ne!(kernel(7).function(), kernel(8).function());
}

#[test]
fn digest_on_a_stream_depends_on_function_and_stream() {
    let keys = [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)];
    let digests = keys.map(|(function, stream)| kernel(function).function().on(stream));
    for (place, digest) in digests.iter().enumerate() {
        assert!(!digests[..place].contains(digest), "{:?}", keys[place]);
    }
}

/// From a kilobyte on: the time of smaller copies does not depend on their size.
#[test]
fn copies_share_an_estimate_if_the_first_three_bits_of_their_sizes_agree() {
    let group = |bytes: u64| (bytes.ilog2(), bytes >> (bytes.ilog2() - 2));
    let sizes = (1024..1100).chain([
        1 << 20,
        (1 << 20) + 1,
        (5 << 20) - 1,
        5 << 20,
        (8 << 30) - 1,
        8 << 30,
    ]);
    let sizes: Vec<u64> = sizes.collect();
    for one in &sizes {
        for other in &sizes {
            let shared = Kernel::copy(*one) == Kernel::copy(*other);
            assert_eq!(shared, group(*one) == group(*other), "{one} and {other}");
        }
    }
    assert_eq!(Kernel::copy(0).size(), Kernel::copy(1000).size());
    assert_eq!(Kernel::copy(u64::MAX).size(), SIZES - 1);
}
