//! Invariants that hold for every sequence of operations.

use cgpu_sim::settings::Figures;
use cgpu_sim::timeline::{
    Command, ContextId, EventId, Forecast, ProcessState, StreamId, Ticket, Timeline, WORDS,
};
use cgpu_sim::words::Plain;
use cgpu_sim::{Bytes, Footprint, Kernel, Nanos};
use proptest::prelude::*;

const GPUS: usize = 2;
const PROCESSES: usize = 3;

/// An operation of a program. Numbers select among the existing objects.
#[derive(Clone, Debug)]
enum Op {
    Pass(u64),
    Context {
        process: usize,
        gpu: usize,
    },
    DropContext(usize),
    Stream {
        context: usize,
        blocking: bool,
        priority: i32,
    },
    DropStream(usize),
    Kernel {
        stream: usize,
        micros: u64,
    },
    /// Takes so many tenths of the GPU.
    Part {
        stream: usize,
        micros: u64,
        tenths: u64,
        cooperative: bool,
        priority: Option<i32>,
    },
    Meet {
        stream: usize,
        key: u64,
    },
    Random {
        stream: usize,
    },
    Move {
        stream: usize,
        micros: u64,
    },
    Copy {
        stream: usize,
        micros: u64,
        up: bool,
    },
    Write {
        stream: usize,
        token: u64,
    },
    Legacy {
        context: usize,
        micros: u64,
    },
    Record {
        stream: usize,
        event: usize,
    },
    WaitEvent {
        stream: usize,
        event: usize,
    },
    Outside {
        stream: usize,
    },
    Answer {
        stream: usize,
    },
    Reserve {
        context: usize,
        mib: u64,
    },
    Die(usize),
}

fn operation() -> impl Strategy<Value = Op> {
    let which = 0..1_000_usize;
    prop_oneof![
        8 => (0..3_000_u64).prop_map(Op::Pass),
        1 => (0..PROCESSES, 0..GPUS).prop_map(|(process, gpu)| Op::Context { process, gpu }),
        1 => which.clone().prop_map(Op::DropContext),
        2 => (which.clone(), any::<bool>(), -6..2_i32)
            .prop_map(|(context, blocking, priority)| Op::Stream { context, blocking, priority }),
        1 => which.clone().prop_map(Op::DropStream),
        10 => (which.clone(), 1..2_500_u64)
            .prop_map(|(stream, micros)| Op::Kernel { stream, micros }),
        8 => (
            which.clone(), 1..2_500_u64, 0..15_u64, any::<bool>(), proptest::option::of(-5..1_i32)
        ).prop_map(
            |(stream, micros, tenths, cooperative, priority)| Op::Part {
                stream, micros, tenths, cooperative, priority
            }
        ),
        1 => (which.clone(), 0..2_u64).prop_map(|(stream, key)| Op::Meet { stream, key }),
        2 => which.clone().prop_map(|stream| Op::Random { stream }),
        1 => (which.clone(), 0..500_u64).prop_map(|(stream, micros)| Op::Move { stream, micros }),
        3 => (which.clone(), 0..900_u64, any::<bool>())
            .prop_map(|(stream, micros, up)| Op::Copy { stream, micros, up }),
        3 => (which.clone(), 1..50_u64).prop_map(|(stream, token)| Op::Write { stream, token }),
        2 => (which.clone(), 1..300_u64)
            .prop_map(|(context, micros)| Op::Legacy { context, micros }),
        4 => (which.clone(), which.clone())
            .prop_map(|(stream, event)| Op::Record { stream, event }),
        3 => (which.clone(), which.clone())
            .prop_map(|(stream, event)| Op::WaitEvent { stream, event }),
        1 => which.clone().prop_map(|stream| Op::Outside { stream }),
        3 => which.clone().prop_map(|stream| Op::Answer { stream }),
        1 => (which, 1..600_u64).prop_map(|(context, mib)| Op::Reserve { context, mib }),
        1 => (0..PROCESSES).prop_map(Op::Die),
    ]
}

/// The results of a run, for comparison.
#[derive(Debug, Default, PartialEq)]
struct History {
    /// Every record that was seen complete, with its time.
    records: Vec<(Ticket, Nanos)>,
    busy: Vec<Nanos>,
    switches: Vec<u64>,
    effects: Vec<(usize, Nanos, u64)>,
    used: Vec<Bytes>,
    now: Nanos,
}

/// Settings of the machine.
#[derive(Clone, Copy, Debug, Default)]
struct Mode {
    mps: bool,
    /// Whether kernels slow each other down and vary in length.
    slows: bool,
}

fn mode() -> impl Strategy<Value = Mode> {
    any::<(bool, bool)>().prop_map(|(mps, slows)| Mode { mps, slows })
}

struct Harness {
    words: Plain,
    figures: Figures,
    now: Nanos,
    contexts: Vec<(ContextId, usize)>,
    streams: Vec<(StreamId, ContextId)>,
    events: Vec<EventId>,
    outside: Vec<Ticket>,
}

impl Harness {
    fn new() -> Self {
        Self::with(Mode::default())
    }

    fn with(mode: Mode) -> Self {
        // A short queue, so that it fills.
        let figures = Figures {
            queue_depth: 24,
            death_delay: Nanos::from_millis(3),
            mps: u64::from(mode.mps),
            corun: if mode.slows { 70_000 } else { 0 },
            noise: if mode.slows { 10_000 } else { 0 },
            ..Figures::default()
        };
        let mut words = Plain::new(WORDS);
        let mut timeline = Timeline::new(&mut words, &figures);
        (0..GPUS).for_each(|gpu| timeline.install(gpu, Bytes::from_mib(4_096)));
        (0..PROCESSES).for_each(|process| timeline.attach(process, 1));
        let now = Nanos::from_millis(1);
        Self {
            words,
            figures,
            now,
            contexts: Vec::new(),
            streams: Vec::new(),
            events: Vec::new(),
            outside: Vec::new(),
        }
    }

    fn timeline(&mut self) -> Timeline<'_, Plain> {
        Timeline::new(&mut self.words, &self.figures)
    }

    fn forget(&mut self, gone: ContextId) {
        self.contexts.retain(|&(context, _)| context != gone);
        self.streams.retain(|&(_, context)| context != gone);
        let mut events = std::mem::take(&mut self.events);
        events.retain(|&event| self.timeline().context_of_event(event).is_some());
        self.events = events;
    }

    fn enqueue(&mut self, stream: usize, command: Command, token: u64) -> Option<Ticket> {
        let &(stream, _) = pick(&self.streams, stream)?;
        let now = self.now;
        self.timeline().enqueue(stream, command, token, now).ok()
    }

    fn act(&mut self, operation: &Op) {
        let now = self.now;
        self.timeline().advance(now);
        match *operation {
            Op::Pass(micros) => self.now = now + Nanos::from_micros(micros),
            Op::Context { process, gpu } => {
                match self.timeline().process_state(process) {
                    ProcessState::Dying => return,
                    ProcessState::Free => self.timeline().attach(process, 2),
                    ProcessState::Live => {}
                }
                if let Ok(context) = self.timeline().create_context(process, gpu) {
                    let event = self.timeline().create_event(context, true).unwrap();
                    self.contexts.push((context, process));
                    self.events.push(event);
                }
            }
            Op::DropContext(context) => {
                if let Some(&(context, _)) = pick(&self.contexts, context) {
                    self.timeline().destroy_context(context, now);
                    self.forget(context);
                }
            }
            Op::Stream { context, blocking, priority } => {
                if let Some(&(context, _)) = pick(&self.contexts, context) {
                    let mut timeline = self.timeline();
                    let stream =
                        timeline.create_stream_with_priority(context, blocking, priority).unwrap();
                    self.streams.push((stream, context));
                }
            }
            Op::DropStream(stream) => {
                if let Some(&(stream, _)) = pick(&self.streams, stream) {
                    self.timeline().destroy_stream(stream);
                    self.streams.retain(|&(each, _)| each != stream);
                }
            }
            Op::Kernel { stream, micros } => {
                if let Some(&(stream, _)) = pick(&self.streams, stream) {
                    let kernel = Kernel::Spin(Some(Nanos::from_micros(micros)));
                    let _ = self.timeline().launch(stream, kernel, now);
                }
            }
            Op::Part { stream, micros, tenths, cooperative, priority } => {
                if let Some(&(stream, _)) = pick(&self.streams, stream) {
                    let kernel = Kernel::Spin(Some(Nanos::from_micros(micros)));
                    let footprint = Footprint::of_blocks(tenths, 10, 8);
                    let cooperative = cooperative && footprint.fits_at_once();
                    let footprint = if cooperative { footprint.cooperative() } else { footprint };
                    let footprint = priority.map_or(footprint, |own| footprint.with_priority(own));
                    let _ = self.timeline().launch_in(stream, kernel, footprint, now);
                }
            }
            Op::Meet { stream, key } => {
                if let Some(&(stream, _)) = pick(&self.streams, stream) {
                    let footprint = Footprint::of_blocks(1, 10, 8);
                    let _ =
                        self.timeline().launch_in(stream, Kernel::WaitPeer(key), footprint, now);
                }
            }
            Op::Random { stream } => {
                if let Some(&(stream, _)) = pick(&self.streams, stream) {
                    let _ =
                        self.timeline().launch(stream, Kernel::named("lognormal_200us_1.0"), now);
                }
            }
            Op::Move { stream, micros } => {
                let cost = Nanos::from_micros(micros);
                self.enqueue(
                    stream,
                    Command::Compute {
                        cost,
                        kernel: false,
                        rendezvous: None,
                        footprint: Footprint::WHOLE,
                    },
                    0,
                );
            }
            Op::Copy { stream, micros, up } => {
                self.enqueue(stream, Command::Copy { up, cost: Nanos::from_micros(micros) }, 3);
            }
            Op::Write { stream, token } => {
                self.enqueue(stream, Command::Write, token);
            }
            Op::Legacy { context, micros } => {
                if let Some(&(context, _)) = pick(&self.contexts, context) {
                    let mut timeline = self.timeline();
                    let legacy = timeline.legacy_stream(context);
                    let _ = timeline.launch(
                        legacy,
                        Kernel::Spin(Some(Nanos::from_micros(micros))),
                        now,
                    );
                }
            }
            Op::Record { stream, event } => {
                if let Some(&event) = pick(&self.events, event) {
                    self.enqueue(stream, Command::Mark(event), 0);
                }
            }
            Op::WaitEvent { stream, event } => {
                let event = pick(&self.events, event).copied();
                if let Some(record) = event.and_then(|event| self.timeline().last_record(event)) {
                    self.enqueue(stream, Command::Wait(record), 0);
                }
            }
            Op::Outside { stream } => {
                let ticket = self.enqueue(stream, Command::Outside, 4);
                self.outside.extend(ticket);
            }
            Op::Answer { stream } => {
                if let Some(&ticket) = pick(&self.outside, stream) {
                    self.timeline().answer(ticket, now);
                }
            }
            Op::Reserve { context, mib } => {
                if let Some(&(context, _)) = pick(&self.contexts, context) {
                    let _ = self.timeline().reserve(context, Bytes::from_mib(mib));
                }
            }
            Op::Die(process) => {
                if self.timeline().process_state(process) != ProcessState::Live {
                    return;
                }
                self.timeline().die(process, now);
                let its: Vec<_> = self
                    .contexts
                    .iter()
                    .filter(|each| each.1 == process)
                    .map(|each| each.0)
                    .collect();
                // It does nothing any more and is not queried.
                self.contexts.retain(|each| each.1 != process);
                self.streams.retain(|each| !its.contains(&each.1));
                let mut events = std::mem::take(&mut self.events);
                events.retain(|&event| {
                    !self.timeline().context_of_event(event).is_some_and(|c| its.contains(&c))
                });
                self.events = events;
            }
        }
    }

    /// Performs the operations; calls `observe` at each of them, at an instant before the next.
    fn run(
        mut self,
        operations: &[Op],
        mut observe: impl FnMut(&mut Timeline<'_, Plain>, Nanos),
    ) -> History {
        let mut history = History::default();
        for operation in operations {
            self.act(operation);
            let now = self.now;
            observe(&mut self.timeline(), now);
        }
        self.finish(&mut history);
        history
    }

    fn finish(&mut self, history: &mut History) {
        let now = self.now + Nanos::from_millis(5);
        let events = self.events.clone();
        let mut timeline = self.timeline();
        timeline.advance(now);
        for event in events {
            if let (Some(record), Some(at)) =
                (timeline.last_record(event), timeline.recorded_at(event))
            {
                history.records.push((record, at));
            }
        }
        for gpu in 0..GPUS {
            timeline.account_up_to(gpu, now);
            history.busy.push(timeline.engine_time(gpu).busy);
            history.switches.push(timeline.engine_time(gpu).switches);
            history.used.push(timeline.memory(gpu).0);
        }
        for process in 0..PROCESSES {
            let mut effects = Vec::new();
            timeline.take_effects(process, &mut effects);
            history.effects.extend(effects.iter().map(|effect| (process, effect.at, effect.token)));
        }
        timeline.check().unwrap();
        history.now = timeline.now();
    }
}

fn pick<T>(from: &[T], number: usize) -> Option<&T> {
    from.get(number.checked_rem(from.len())?)
}

/// Generates operations, after a start with two streams in a context of every process.
fn operations() -> impl Strategy<Value = Vec<Op>> {
    let start = (0..PROCESSES).flat_map(|process| {
        let context = Op::Context { process, gpu: process % GPUS };
        let stream = |blocking| Op::Stream { context: process, blocking, priority: 0 };
        [context, stream(true), stream(false)]
    });
    let start: Vec<Op> = start.collect();
    proptest::collection::vec(operation(), 1..150)
        .prop_map(move |rest| [&start[..], &rest].concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn state_is_always_consistent(operations in operations(), mode in mode()) {
        Harness::with(mode).run(&operations, |timeline, now| {
            timeline.advance(now);
            timeline.check().unwrap();
            assert_eq!(timeline.now(), now);
        });
    }

    /// The times and the number of observations do not matter: jitter of the host never affects
    /// device time.
    #[test]
    fn observation_changes_nothing(
        operations in operations(),
        often in 1..2_000_u64,
        mode in mode(),
    ) {
        let rarely = Harness::with(mode).run(&operations, |_, _| {});
        let frequently = Harness::with(mode).run(&operations, |timeline, now| {
            while timeline.now() < now {
                let next = (timeline.now() + Nanos(often * 1_000)).min(now);
                timeline.advance(next);
                (0..GPUS).for_each(|gpu| timeline.account_up_to(gpu, next));
            }
        });
        prop_assert_eq!(rarely, frequently);
    }

    /// A forecast is exact to the nanosecond if nothing new arrives, and computing it changes
    /// nothing.
    #[test]
    fn forecasts_are_exact(operations in operations(), mode in mode()) {
        let mut harness = Harness::with(mode);
        operations.iter().for_each(|operation| harness.act(operation));
        let now = harness.now;
        let streams = harness.streams.clone();
        for &(stream, _) in &streams {
            let mut timeline = harness.timeline();
            timeline.advance(now);
            let tail = timeline.tail(stream);
            let forecast = timeline.forecast(&[tail]);
            prop_assert_eq!(timeline.forecast(&[tail]), forecast);
            timeline.check().unwrap();
        }
        let mut timeline = harness.timeline();
        let tails: Vec<_> = streams.iter().map(|&(stream, _)| timeline.tail(stream)).collect();
        match timeline.forecast(&tails) {
            Forecast::At(at) => {
                if at > now {
                    timeline.advance(Nanos(at.0 - 1));
                    prop_assert!(tails.iter().any(|&tail| !timeline.is_done(tail)));
                }
                timeline.advance(at);
                prop_assert!(tails.iter().all(|&tail| timeline.is_done(tail)));
            }
            Forecast::NotBefore(at) => {
                timeline.advance(Nanos(at.0.saturating_sub(1)));
                prop_assert!(tails.iter().any(|&tail| !timeline.is_done(tail)));
            }
            Forecast::Unknown => {
                timeline.advance(now + Nanos::from_millis(1_000_000));
                prop_assert!(tails.iter().any(|&tail| !timeline.is_done(tail)));
            }
        }
    }

    /// A kernel that ends has computed exactly its length, however it shared the GPU. Kernels take
    /// as long as the sum of their lengths if they run alone, and at least the sum of their lengths
    /// times their shares if concurrent.
    #[test]
    fn shares_are_conserved(
        kernels in proptest::collection::vec((0..6_usize, 1..3_000_u64, 1..14_u64), 1..60),
        mps in any::<bool>(),
    ) {
        let mut harness = Harness::with(Mode { mps, slows: false });
        for process in 0..PROCESSES {
            harness.act(&Op::Context { process, gpu: 0 });
            harness.act(&Op::Stream { context: process, blocking: false, priority: 0 });
            harness.act(&Op::Stream { context: process, blocking: false, priority: -1 });
        }
        let (begun, latency) = (harness.now, harness.figures.launch_latency);
        let (mut lengths, mut area, mut longest) = (Nanos::ZERO, 0, Nanos::ZERO);
        let mut last = Vec::new();
        for &(stream, micros, tenths) in &kernels {
            let cost = Nanos::from_micros(micros);
            let (id, _) = harness.streams[stream];
            let footprint = Footprint::of_blocks(tenths, 10, 10);
            let kernel = Kernel::Spin(Some(cost));
            if let Ok(ticket) = harness.timeline().launch_in(id, kernel, footprint, begun) {
                (lengths, area) = (lengths + cost, area + micros * tenths.min(10));
                longest = longest.max(cost);
                last.push(ticket);
            }
        }
        let mut timeline = harness.timeline();
        let slices = lengths.0 / 1_024_000 + 2 * kernels.len() as u64 + 2;
        timeline.advance(begun + lengths + latency + Nanos(slices * 100_000));
        prop_assert!(last.iter().all(|&ticket| timeline.is_done(ticket)));
        let busy = timeline.engine_time(0).busy;
        // Rates are rounded down to multiples of 2^-18.
        prop_assert!(busy.0 <= lengths.0 + lengths.0 / 100_000, "{busy} for {lengths}");
        prop_assert!(busy.0 * 10 >= area * 1_000 && busy >= longest, "{busy} for {area} us tenths");
    }

    /// Launched work equals computed work once all is done.
    #[test]
    fn work_is_conserved(
        kernels in proptest::collection::vec((0..6_usize, 1..3_000_u64, 0..400_u64), 1..120),
    ) {
        let mut harness = Harness::new();
        for process in 0..PROCESSES {
            harness.act(&Op::Context { process, gpu: 0 });
            harness.act(&Op::Stream { context: process, blocking: false, priority: 0 });
            harness.act(&Op::Stream { context: process, blocking: true, priority: -2 });
        }
        let mut launched = Nanos::ZERO;
        let mut last = [None; 6];
        for &(stream, micros, gap) in &kernels {
            harness.act(&Op::Pass(gap));
            let cost = Nanos::from_micros(micros);
            let now = harness.now;
            let (id, _) = harness.streams[stream];
            if let Ok(ticket) = harness.timeline().launch(id, Kernel::Spin(Some(cost)), now) {
                launched = launched + cost;
                last[stream] = Some(ticket);
            }
        }
        let begun = harness.now;
        let mut timeline = harness.timeline();
        // The engine is never idle while there is work, so this is enough: the work, and a switch
        // for each slice of it.
        let slices = launched.0 / 1_024_000 + 2 * kernels.len() as u64 + 2;
        let end = begun + launched + Nanos(slices * 100_000);
        timeline.advance(end);
        prop_assert_eq!(timeline.engine_time(0).busy, launched);
        for ticket in last.into_iter().flatten() {
            prop_assert!(timeline.is_done(ticket));
        }
    }
}
