//! Concurrent kernels: by their use of the GPU, their priority and their order.

use cgpu_sim::settings::Figures;
use cgpu_sim::timeline::{ContextId, GREATEST_PRIORITY, StreamId, Ticket, Timeline, WORDS};
use cgpu_sim::words::Plain;
use cgpu_sim::{Bytes, Footprint, GpuSpec, Kernel, Nanos};

/// The engine alone: a kernel can begin at the instant of its launch.
fn bare() -> Figures {
    Figures { launch_latency: Nanos::ZERO, switch: Nanos::ZERO, ..Figures::default() }
}

struct Gpu {
    words: Plain,
    figures: Figures,
}

impl Gpu {
    fn new(figures: Figures) -> Self {
        let mut words = Plain::new(WORDS);
        Timeline::new(&mut words, &figures).install(0, Bytes::from_mib(8_192));
        Self { words, figures }
    }

    fn timeline(&mut self) -> Timeline<'_, Plain> {
        Timeline::new(&mut self.words, &self.figures)
    }

    fn context(&mut self, process: usize) -> ContextId {
        let mut timeline = self.timeline();
        timeline.attach(process, 100);
        timeline.create_context(process, 0).unwrap()
    }

    fn streams<const N: usize>(&mut self, context: ContextId) -> [StreamId; N] {
        [(); N].map(|()| self.timeline().create_stream(context, false).unwrap())
    }

    /// Launches a kernel of so many microseconds at `at` microseconds.
    fn launch(&mut self, stream: StreamId, micros: u64, footprint: Footprint, at: u64) -> Ticket {
        let mut timeline = self.timeline();
        timeline.advance(Nanos::from_micros(at));
        let kernel = Kernel::Spin(Some(Nanos::from_micros(micros)));
        let ticket = timeline.launch_in(stream, kernel, footprint, Nanos::from_micros(at)).unwrap();
        timeline.check().unwrap();
        ticket
    }

    /// Returns the microsecond at which each of the tickets is done.
    fn ends<const N: usize>(&mut self, tickets: [Ticket; N]) -> [u64; N] {
        let mut ends = [0; N];
        let start = self.timeline().now().0 / 1_000;
        for micros in start..start + 100_000 {
            let mut timeline = self.timeline();
            timeline.advance(Nanos::from_micros(micros));
            timeline.check().unwrap();
            for (end, ticket) in ends.iter_mut().zip(tickets) {
                if *end == 0 && timeline.is_done(ticket) {
                    *end = micros;
                }
            }
            if ends.iter().all(|&end| end != 0) {
                break;
            }
        }
        ends
    }
}

/// Returns a footprint of so many percent of the GPU, in blocks of one percent.
fn percent(of_gpu: u64) -> Footprint {
    Footprint::of_blocks(of_gpu, 100, 100)
}

#[test]
fn kernels_that_fit_overlap_fully() {
    let mut gpu = Gpu::new(bare());
    let context = gpu.context(0);
    let [a, b, c] = gpu.streams(context);
    let tickets = [
        gpu.launch(a, 100, percent(50), 0),
        gpu.launch(b, 60, percent(30), 0),
        gpu.launch(c, 80, percent(20), 10),
    ];
    assert_eq!(gpu.ends(tickets), [100, 60, 90]);
}

#[test]
fn kernels_that_fill_the_gpu_run_in_turn() {
    let mut gpu = Gpu::new(bare());
    let context = gpu.context(0);
    let [a, b] = gpu.streams(context);
    let tickets = [
        gpu.launch(a, 100, Footprint::WHOLE, 0),
        gpu.launch(b, 60, Footprint::WHOLE, 0),
        gpu.launch(a, 7, percent(1), 0),
    ];
    assert_eq!(gpu.ends(tickets), [100, 160, 167]);
}

/// The leftover policy: the second kernel gets the 40 % that the first leaves, then its full 80 %.
#[test]
fn next_kernel_gets_the_leftover() {
    let mut gpu = Gpu::new(bare());
    let context = gpu.context(0);
    let [a, b, c] = gpu.streams(context);
    let tickets = [
        gpu.launch(a, 100, percent(60), 0),
        gpu.launch(b, 100, percent(80), 0),
        gpu.launch(c, 10, percent(1), 0),
    ];
    // In 100 us at half rate, the second kernel does 50 us of its work. The third waits until all
    // blocks of the second are on the GPU.
    assert_eq!(gpu.ends(tickets), [100, 150, 110]);
}

#[test]
fn less_than_a_block_cannot_be_used() {
    let mut gpu = Gpu::new(bare());
    let context = gpu.context(0);
    let [a, b] = gpu.streams(context);
    let halves = Footprint::of_blocks(2, 2, 100);
    let tickets = [gpu.launch(a, 100, percent(60), 0), gpu.launch(b, 50, halves, 0)];
    assert_eq!(gpu.ends(tickets), [100, 150]);
}

#[test]
fn streams_of_higher_priority_run_first() {
    let mut gpu = Gpu::new(bare());
    let context = gpu.context(0);
    let [running, waiting] = gpu.streams(context);
    let mut timeline = gpu.timeline();
    let urgent = timeline.create_stream_with_priority(context, false, GREATEST_PRIORITY).unwrap();
    let middle = timeline.create_stream_with_priority(context, false, -1).unwrap();
    let tickets = [
        gpu.launch(running, 100, Footprint::WHOLE, 0),
        gpu.launch(waiting, 50, Footprint::WHOLE, 0),
        gpu.launch(middle, 20, Footprint::WHOLE, 10),
        gpu.launch(urgent, 10, Footprint::WHOLE, 20),
    ];
    // A grid in waves yields as its blocks end, and continues later.
    assert_eq!(gpu.ends(tickets), [130, 180, 40, 30]);
}

#[test]
fn launch_priority_overrides_its_streams() {
    let mut gpu = Gpu::new(bare());
    let context = gpu.context(0);
    let [a, b] = gpu.streams(context);
    let urgent = gpu.timeline().create_stream_with_priority(context, false, -3).unwrap();
    let tickets = [
        gpu.launch(a, 100, Footprint::WHOLE, 0),
        gpu.launch(b, 10, Footprint::WHOLE.with_priority(-2), 10),
        gpu.launch(urgent, 20, Footprint::WHOLE.with_priority(0), 10),
    ];
    assert_eq!(gpu.ends(tickets), [110, 20, 130]);
}

#[test]
fn kernel_with_all_blocks_resident_keeps_the_gpu() {
    let mut gpu = Gpu::new(bare());
    let context = gpu.context(0);
    let [stream] = gpu.streams(context);
    let urgent = gpu.timeline().create_stream_with_priority(context, false, -3).unwrap();
    let tickets =
        [gpu.launch(stream, 100, percent(75), 0), gpu.launch(urgent, 100, percent(50), 20)];
    // Half of the urgent kernel fits until the other ends: in 80 us it does 40 us of its work.
    assert_eq!(gpu.ends(tickets), [100, 160]);
}

#[test]
fn cooperative_kernel_begins_when_all_blocks_fit() {
    let mut gpu = Gpu::new(bare());
    let context = gpu.context(0);
    let [a, b, c] = gpu.streams(context);
    let tickets = [
        gpu.launch(a, 100, percent(60), 0),
        gpu.launch(b, 50, percent(50).cooperative(), 0),
        gpu.launch(c, 10, percent(1), 0),
    ];
    assert_eq!(gpu.ends(tickets), [100, 150, 110], "nothing overtakes it");
}

#[test]
fn shares_persist_across_slices_of_others() {
    let mut gpu = Gpu::new(Figures { slice: Nanos::from_micros(40), ..bare() });
    let (one, other) = (gpu.context(0), gpu.context(1));
    let [a, b] = gpu.streams(one);
    let [c] = gpu.streams(other);
    let tickets = [
        gpu.launch(a, 100, percent(50), 0),
        gpu.launch(b, 100, percent(100), 0),
        gpu.launch(c, 100, Footprint::WHOLE, 0),
    ];
    // Slices of 40 us alternate. The first context computes at 0-40, 80-120, 160-180 and so on. Its
    // second kernel runs at half rate until 180, then at full rate at 180-200 and 220-250, after
    // the other context's last 20 us.
    assert_eq!(gpu.ends(tickets), [180, 250, 220]);
}

/// A stream that waits for another's end begins at the same instant, so the context is never
/// without work.
#[test]
fn streams_that_wait_for_each_other_keep_their_slice() {
    let mut gpu = Gpu::new(Figures { switch: Nanos::from_micros(100), ..bare() });
    let chained = gpu.context(0);
    let neighbour = gpu.context(1);
    let [a, b] = gpu.streams(chained);
    let [other] = gpu.streams(neighbour);
    let mut last = gpu.launch(a, 50, Footprint::WHOLE, 0);
    gpu.launch(other, 10_000, Footprint::WHOLE, 0);
    for stream in [b, a].into_iter().cycle().take(19) {
        let mut timeline = gpu.timeline();
        timeline.enqueue(stream, cgpu_sim::timeline::Command::Wait(last), 0, Nanos::ZERO).unwrap();
        last = gpu.launch(stream, 50, Footprint::WHOLE, 0);
    }
    // One switch before the first, and 1,000 us of the slice of 1,024.
    assert_eq!(gpu.ends([last]), [1_100]);
}

#[test]
fn idle_context_keeps_its_slice_for_the_set_time() {
    for (idle, end) in [(0, 1_424), (9, 1_433), (20, 210)] {
        let idle = Nanos::from_micros(idle);
        let mut gpu = Gpu::new(Figures { switch: Nanos::from_micros(100), idle, ..bare() });
        let contexts = [0, 1].map(|process| gpu.context(process));
        let [[own], [other]] = contexts.map(|context| gpu.streams(context));
        gpu.launch(own, 50, Footprint::WHOLE, 0);
        gpu.launch(other, 10_000, Footprint::WHOLE, 1);
        // 10 us after the end of the first one.
        let second = gpu.launch(own, 50, Footprint::WHOLE, 160);
        // Otherwise after a slice of the other context and two switches.
        assert_eq!(gpu.ends([second]), [end], "{idle}");
    }
}

#[test]
fn event_records_do_not_wait_for_kernels_of_other_streams() {
    let mut gpu = Gpu::new(bare());
    let context = gpu.context(0);
    let [a, b] = gpu.streams(context);
    let kernel = gpu.launch(a, 100, Footprint::WHOLE, 0);
    let mut timeline = gpu.timeline();
    let event = timeline.create_event(context, true).unwrap();
    let record =
        timeline.enqueue(b, cgpu_sim::timeline::Command::Mark(event), 0, Nanos::ZERO).unwrap();
    assert_eq!(gpu.ends([kernel, record]), [100, 1]);
}

/// Kernels of several streams can overlap, so only the legacy stream's barrier separates blocking
/// streams.
#[test]
fn legacy_stream_separates_blocking_streams() {
    let mut gpu = Gpu::new(bare());
    let context = gpu.context(0);
    let mut timeline = gpu.timeline();
    let legacy = timeline.legacy_stream(context);
    let [a, b] = [(); 2].map(|()| timeline.create_stream(context, true).unwrap());
    let free = timeline.create_stream(context, false).unwrap();
    let tickets = [
        gpu.launch(a, 100, percent(20), 0),
        gpu.launch(legacy, 50, percent(20), 0),
        gpu.launch(b, 30, percent(20), 0),
        gpu.launch(a, 10, percent(20), 0),
        gpu.launch(free, 40, percent(20), 0),
        gpu.launch(legacy, 5, percent(20), 0),
    ];
    assert_eq!(gpu.ends(tickets), [100, 150, 180, 160, 40, 185]);
}

#[test]
fn concurrent_kernels_slow_down_as_set() {
    let mut gpu = Gpu::new(Figures { corun: 250_000, ..bare() });
    let context = gpu.context(0);
    let [a, b] = gpu.streams(context);
    let tickets = [gpu.launch(a, 100, percent(50), 0), gpu.launch(b, 40, percent(50), 0)];
    // 40 us take 50 us beside the other kernel, which has then done 40 of its 100 us. The end is
    // seen a microsecond later, because rates are rounded down.
    assert_eq!(gpu.ends(tickets), [111, 51]);
}

#[test]
fn busy_time_of_concurrent_kernels_is_counted_once() {
    let mut gpu = Gpu::new(bare());
    let context = gpu.context(0);
    let [a, b, c] = gpu.streams(context);
    gpu.launch(a, 100, percent(30), 0);
    gpu.launch(b, 100, percent(30), 50);
    gpu.launch(c, 20, percent(30), 200);
    let mut timeline = gpu.timeline();
    timeline.advance(Nanos::from_micros(300));
    timeline.account_up_to(0, Nanos::from_micros(300));
    assert_eq!(timeline.engine_time(0).busy, Nanos::from_micros(170));
    assert_eq!(timeline.context_busy(context), Nanos::from_micros(170));
    assert_eq!(timeline.processes(0)[0].kernels, 3);
}

/// With MPS, the contexts of all processes compute concurrently, without switches.
#[test]
fn mps_tenants_overlap_by_occupancy() {
    let mut gpu = Gpu::new(Figures { mps: 1, switch: Nanos::from_micros(100), ..bare() });
    let contexts = [gpu.context(0), gpu.context(1), gpu.context(2)];
    let [[a], [b], [c]] = contexts.map(|context| gpu.streams(context));
    let tickets = [
        gpu.launch(a, 1_000, percent(50), 0),
        gpu.launch(b, 2_000, percent(50), 0),
        gpu.launch(c, 500, percent(20), 0),
    ];
    // The only switch is to the merged group.
    assert_eq!(gpu.ends(tickets), [1_100, 2_100, 1_600]);
    let timeline = gpu.timeline();
    let spent = timeline.engine_time(0);
    assert_eq!((spent.busy, spent.switches), (Nanos::from_micros(2_000), 1));
    let busy = contexts.map(|context| timeline.context_busy(context).0 / 1_000);
    assert_eq!(busy, [1_000, 2_000, 500]);
}

#[test]
fn mps_context_that_ends_frees_its_share() {
    let mut gpu = Gpu::new(Figures { mps: 1, ..bare() });
    let (one, other) = (gpu.context(0), gpu.context(1));
    let [a, b] = gpu.streams(one);
    let [c] = gpu.streams(other);
    gpu.launch(a, 1_000, percent(50), 0);
    gpu.launch(b, 1_000, Footprint::WHOLE, 0);
    let survivor = gpu.launch(c, 100, percent(100), 0);
    let mut timeline = gpu.timeline();
    timeline.advance(Nanos::from_micros(10));
    timeline.destroy_context(one, Nanos::from_micros(10));
    timeline.check().unwrap();
    assert_eq!(gpu.ends([survivor]), [110]);
    gpu.timeline().destroy_context(other, Nanos::from_micros(120));
    gpu.timeline().check().unwrap();
}

#[test]
fn mps_costs_no_switches() {
    let spent = |mps| {
        let mut gpu = Gpu::new(Figures { mps, ..Figures::default() });
        for process in 0..2 {
            let context = gpu.context(process);
            let [stream] = gpu.streams(context);
            for _ in 0..1_000 {
                gpu.timeline().launch(stream, Kernel::named("spin_60us"), Nanos::ZERO).unwrap();
            }
        }
        gpu.timeline().advance(Nanos::from_millis(1_000));
        gpu.timeline().engine_time(0)
    };
    let (sliced, merged) = (spent(0), spent(1));
    assert_eq!((sliced.busy, merged.busy), (Nanos::from_millis(120), Nanos::from_millis(120)));
    assert_eq!(merged.switches, 1);
    assert!(sliced.switches >= 120_000 / 1_024, "{}", sliced.switches);
}

#[test]
fn grids_on_real_gpus_overlap_if_their_blocks_fit() {
    let a10 = GpuSpec::parse_list("A10").unwrap()[0];
    // 72 multiprocessors of 1536 threads: 432 blocks of 256 at once.
    let of = |blocks| a10.footprint(blocks, 256, 0, 32).unwrap();
    let mut gpu = Gpu::new(bare());
    let context = gpu.context(0);
    let [a, b] = gpu.streams(context);
    let tickets = [gpu.launch(a, 100, of(216), 0), gpu.launch(b, 100, of(216), 0)];
    assert_eq!(gpu.ends(tickets), [100, 100]);
    let tickets = [gpu.launch(a, 100, of(432), 1_000), gpu.launch(b, 100, of(1), 1_000)];
    assert_eq!(gpu.ends(tickets), [1_100, 1_200]);
}

#[test]
fn stream_holds_1022_commands() {
    let mut gpu = Gpu::new(Figures::default());
    let context = gpu.context(0);
    let [stream, other] = gpu.streams(context);
    let mut timeline = gpu.timeline();
    for _ in 0..1_022 {
        timeline.launch(stream, Kernel::named("spin_10us"), Nanos::ZERO).unwrap();
    }
    let full = timeline.launch(stream, Kernel::named("spin_10us"), Nanos::ZERO).unwrap_err();
    // A sixteenth of them must be done first, so that the host is not woken for each one.
    assert_eq!(full.room.number, 1_022 - 1_022 * 15 / 16);
    timeline.launch(other, Kernel::named("spin_10us"), Nanos::ZERO).unwrap();
}

#[test]
fn noise_varies_lengths_reproducibly() {
    let busy = |seed| {
        let mut gpu = Gpu::new(Figures { noise: 10_000, seed, ..bare() });
        let context = gpu.context(0);
        let [stream] = gpu.streams(context);
        let mut timeline = gpu.timeline();
        for _ in 0..1_000 {
            timeline.launch(stream, Kernel::named("spin_60us"), Nanos::ZERO).unwrap();
        }
        timeline.advance(Nanos::from_millis(100));
        timeline.engine_time(0).busy.0
    };
    assert_eq!(busy(1), busy(1));
    assert_ne!(busy(1), busy(2));
    // The mean of 1000 draws with a deviation of 1 % deviates by 0.03 %.
    for seed in 0..10 {
        assert!(busy(seed).abs_diff(60_000_000) < 120_000, "{}", busy(seed));
        assert_ne!(busy(seed), 60_000_000);
    }
}
