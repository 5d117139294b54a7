//! Programs that launch in many shapes, and shapes with varying cost. Shapes, costs and their order
//! are random.

use super::*;

#[derive(Debug)]
struct Ran {
    /// Share of launches on the fast path.
    fast: f64,
    /// Share of the time in which the GPU computed.
    used: f64,
}

/// A small random generator with a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 33) as u32 % bound
    }

    /// Random a grid and a block; grids span twelve powers of two.
    fn shape(&mut self) -> ([u32; 3], [u32; 3]) {
        let least = 1 << self.below(12);
        let grid = [least + self.below(least), 1 + self.below(4), 1];
        (grid, [32 * (1 + self.below(32)), 1, 1])
    }
}

type KernelCost = (Kernel, Nanos);

/// Launches drawn kernels for half a second, as fast as a host can, in a turn that does not end.
fn run(seed: u64, draw: impl Fn(&mut Random, u64) -> KernelCost + Sync) -> Ran {
    const LENGTH: u64 = 500;
    let counts = Mutex::new((0, 0));
    let harness = alone(yours(ms(1_000_000)), |role, program| {
        let mut random = Random(seed);
        let mut launches = 0;
        while role.now() < BEGIN + ms(LENGTH) {
            let (kernel, cost) = draw(&mut random, launches);
            program.launch_kernel(kernel, STREAM, cost, false);
            launches += 1;
            role.sleep(us(3));
        }
        *counts.lock().expect("it") = (program.fast.get(), launches);
    });
    let (fast, launches) = counts.into_inner().expect("it");
    harness.gpu(|gpu| Ran {
        fast: fast as f64 / launches as f64,
        used: gpu.ran[&0].0 as f64 / ms(LENGTH).0 as f64,
    })
}

fn kernel(function: usize, (grid, block): ([u32; 3], [u32; 3])) -> Kernel {
    Kernel::new(function, grid, block)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn always_new_shapes_take_the_slow_path_as_seldom_as_one(seed: u64, cost in 5_u64..40) {
        let one = run(seed, |_, _| (Kernel::new(7, [1000, 1, 1], [128, 1, 1]), us(cost)));
        let new = run(seed, |random, _| (kernel(7, random.shape()), us(cost)));
        prop_assert!(new.fast > 0.95 * one.fast, "{new:?}, one shape {one:?}");
        prop_assert!(new.used > 0.97 * one.used, "{new:?}, one shape {one:?}");
    }

    #[test]
    fn fifty_functions_in_random_shapes_keep_the_gpu_busy(seed: u64) {
        let many = run(seed, |random, _| {
            let function = random.below(50);
            let shape = random.shape();
            let blocks = u64::from(shape.0[0] * shape.0[1]);
            // Half of them take the same time whatever the grid.
            let cost = if function % 2 == 0 { 5 + u64::from(function) } else { 5 + blocks / 100 };
            (kernel(0x5555_0000 + 64 * function as usize, shape), us(cost))
        });
        prop_assert!(many.used > 0.97, "{many:?}");
        prop_assert!(many.fast > 0.6, "{many:?}");
    }
}

/// Runs a tenant beside one of 60 us kernels for `LENGTH`, in turns of 6 ms. Its launches have one
/// shape, and the `number`th takes `cost(number)`. Returns its most work in flight in the second
/// half.
fn most_in_flight(cost: impl Fn(u64) -> Nanos + Sync) -> Nanos {
    const LENGTH: Nanos = Nanos::from_millis(4000);
    let harness = Harness::new(2);
    let end = BEGIN + LENGTH;
    let opens: [AtomicU32; 2] = Default::default();
    let gates = gates(&harness, &opens);
    harness.run(&[
        &|role| drop(run_turns(role, &[ms(6), ms(6)], end)),
        &|role| {
            role.sleep(us(10));
            let program = Program::new(&gates[0], role.platform(0));
            let (mut number, mut learning) = (0, true);
            while role.now() < end {
                if learning && role.now() > BEGIN + Nanos(LENGTH.0 / 2) {
                    learning = false;
                    harness.gpu(|gpu| gpu.most.remove(&0));
                }
                program.launch(1, STREAM, cost(number));
                number += 1;
                role.sleep(us(3));
            }
        },
        &|role| {
            role.sleep(us(10));
            saturate(role, &Program::new(&gates[1], role.platform(1)), us(60), end);
        },
    ]);
    harness.gpu(|gpu| gpu.most.get(&0).copied().unwrap_or_default())
}

/// At most two long launches and the neighbour's work in flight, because a high quantile limits it.
/// By the mean it would be some hundred long launches.
#[test]
fn shape_that_alternates_between_short_and_long_has_few_launches_in_flight() {
    for (run, most) in [(1, 2), (2, 4), (5, 8), (20, 12)] {
        let found = most_in_flight(|number| if number / run % 2 == 0 { us(10) } else { ms(5) });
        println!("runs of {run}: {} us in flight", found.0 / 1000);
        assert!(found < ms(5 * most) + ms(2), "runs of {run}: {found}");
    }
    for rare in [2, 5, 20] {
        let found = most_in_flight(|number| {
            let mut random = Random(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            random.below(1);
            if random.below(rare) == 0 { ms(5) } else { us(10) }
        });
        println!("one in {rare}: {} us in flight", found.0 / 1000);
        assert!(found < ms(5 * 8) + ms(2), "one in {rare}: {found}");
    }
}

/// Without a waiting neighbour, few launches in flight must not leave the GPU idle.
#[test]
fn shape_that_is_long_now_and_then_keeps_the_gpu_busy() {
    for rare in [2, 5, 20, 100, 1000] {
        let shape = ([1; 3], [32, 1, 1]);
        let ran = run(1, |random, _| {
            (kernel(1, shape), if random.below(rare) == 0 { ms(5) } else { us(10) })
        });
        println!("one in {rare}: {ran:?}");
        assert!(ran.used > 0.85, "one in {rare}: {ran:?}");
    }
}

/// A tenant is charged what it ran, though each launch was estimated differently.
#[test]
fn shape_that_alternates_is_charged_what_it_took() {
    let counts = Mutex::new((Nanos::ZERO, Nanos::ZERO));
    alone(yours(ms(1_000_000)), |role, program| {
        for number in 0..600_u64 {
            program.launch(1, STREAM, if number % 2 == 0 { us(10) } else { ms(5) });
            role.sleep(us(3));
        }
        role.sleep(ms(200));
        program.launch(2, STREAM, us(10));
        let ran = role.harness.gpu(|gpu| gpu.ran[&0]);
        *counts.lock().expect("it") = (Nanos(program.cell().busy.load(Ordering::Relaxed)), ran);
    });
    let (busy, ran) = counts.into_inner().expect("it");
    assert!(busy.0.abs_diff(ran.0) < ran.0 / 100, "{busy} of {ran}");
}
