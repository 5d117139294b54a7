//! Programs that launch in many shapes, and shapes that do not tell what a launch costs. Shapes,
//! costs and their order are drawn.

use super::*;

#[derive(Debug)]
struct Ran {
    /// Part of the launches that went without the slow path.
    unasked: f64,
    /// Part of the time in which the GPU computed.
    used: f64,
}

/// A small generator: the same seed draws the same.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 33) as u32 % bound
    }

    /// A grid and a block; grids span twelve powers of two.
    fn shape(&mut self) -> ([u32; 3], [u32; 3]) {
        let least = 1 << self.below(12);
        let grid = [least + self.below(least), 1 + self.below(4), 1];
        (grid, [32 * (1 + self.below(32)), 1, 1])
    }
}

/// A kernel of a function, its shape and how long it takes.
type Drawn = (Kernel, Nanos);

/// Launches what is drawn for half a second, as fast as a host can, in a turn that does not end.
fn run(seed: u64, draw: impl Fn(&mut Draws, u64) -> Drawn + Sync) -> Ran {
    const LENGTH: u64 = 500;
    let counts = Mutex::new((0, 0));
    let stage = alone(yours(ms(1_000_000)), |role, program| {
        let mut draws = Draws(seed);
        let mut launches = 0;
        while role.now() < BEGIN + ms(LENGTH) {
            let (kernel, cost) = draw(&mut draws, launches);
            program.launch_kernel(kernel, STREAM, cost, false);
            launches += 1;
            role.sleep(us(3));
        }
        *counts.lock().expect("it") = (program.unasked.get(), launches);
    });
    let (unasked, launches) = counts.into_inner().expect("it");
    stage.card(|card| Ran {
        unasked: unasked as f64 / launches as f64,
        used: card.ran[&0].0 as f64 / ms(LENGTH).0 as f64,
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
        let new = run(seed, |draws, _| (kernel(7, draws.shape()), us(cost)));
        prop_assert!(new.unasked > 0.95 * one.unasked, "{new:?}, one shape {one:?}");
        prop_assert!(new.used > 0.97 * one.used, "{new:?}, one shape {one:?}");
    }

    #[test]
    fn fifty_functions_in_drawn_shapes_keep_the_gpu_busy(seed: u64) {
        let many = run(seed, |draws, _| {
            let function = draws.below(50);
            let shape = draws.shape();
            let blocks = u64::from(shape.0[0] * shape.0[1]);
            // Half of them take as long whatever the grid.
            let cost = if function % 2 == 0 { 5 + u64::from(function) } else { 5 + blocks / 100 };
            (kernel(0x5555_0000 + 64 * function as usize, shape), us(cost))
        });
        prop_assert!(many.used > 0.97, "{many:?}");
        prop_assert!(many.unasked > 0.6, "{many:?}");
    }
}
