//! Event times: in their unit, equal to the timeline's, monotonic, and rounded to a float as a real
//! GPU's.

use cgpu_sim::clock::{Clock, VirtualClock};
use cgpu_sim::kernel::mix;
use cgpu_sim::machine::{EventId, Launch, StreamKind, milliseconds};
use cgpu_sim::settings::Figures;
use cgpu_sim::timeline::ClockRate;
use cgpu_sim::{Error, Kernel, Machine, Nanos, Settings};

struct Setup {
    _directory: tempfile::TempDir,
    settings: Settings,
    clock: VirtualClock,
}

impl Setup {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let state = directory.path().join("segment");
        let settings =
            Settings { state, gpus: None, time_scale_milli: 1_000, figures: Figures::default() };
        Self { _directory: directory, settings, clock: VirtualClock::default() }
    }

    fn machine(&self) -> Machine {
        Machine::open_with(&self.settings, Clock::Virtual(self.clock.clone())).unwrap()
    }
}

/// Returns both times of an event since a base: as reported, and as the timeline has it.
fn times(machine: &Machine, base: EventId, event: EventId) -> (i64, i64) {
    let reported = machine.elapsed(base, event).unwrap().unwrap();
    let [base, event] = [base, event].map(|event| machine.recorded_at(event).unwrap().unwrap());
    (reported, event.0.cast_signed() - base.0.cast_signed())
}

#[test]
fn event_times_are_exact_to_half_a_microsecond() {
    let setup = Setup::new();
    // A neighbour divides our kernels into slices.
    let [machine, neighbour] = [setup.machine(), setup.machine()];
    let beside = neighbour.create_context(0).unwrap();
    let beside = neighbour.create_stream(beside, StreamKind::NonBlocking).unwrap();
    let context = machine.create_context(0).unwrap();
    let streams =
        [(); 3].map(|()| machine.create_stream(context, StreamKind::NonBlocking).unwrap());
    let base = machine.create_event(context, true).unwrap();
    machine.record_event(base, streams[0]).unwrap();
    let mut events = streams.map(|_| Vec::new());
    for round in 0..1_500 {
        let drawn = mix(round);
        let which = usize::try_from(drawn % 3).unwrap();
        let kernel = |nanos| Launch::whole(Kernel::Spin(Some(Nanos(nanos))));
        neighbour.launch(beside, kernel(1 + drawn % 90_000)).unwrap();
        machine.launch(streams[which], kernel(1 + mix(drawn) % 700_001)).unwrap();
        let event = machine.create_event(context, true).unwrap();
        machine.record_event(event, streams[which]).unwrap();
        events[which].push(event);
    }
    machine.synchronize_context(context).unwrap();
    for in_one_stream in &events {
        let mut last = 0;
        for &event in in_one_stream {
            let (reported, was) = times(&machine, base, event);
            assert!((reported - was).abs() <= 500, "{reported} reported, {was} was");
            assert_eq!(reported % 500, 0, "off the grid");
            assert!(reported >= last, "{reported} after {last}");
            last = reported;
        }
        for pair in in_one_stream.windows(2) {
            assert!(machine.elapsed(pair[0], pair[1]).unwrap().unwrap() >= 0);
        }
    }
}

/// Checks the real clock: the host must not see an event before its time.
#[test]
fn event_times_on_the_real_clock_never_run_backwards() {
    let setup = Setup::new();
    let machine = Machine::open(&setup.settings).unwrap();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let [base, event] = [(); 2].map(|()| machine.create_event(context, true).unwrap());
    machine.record_event(base, stream).unwrap();
    machine.synchronize_event(base).unwrap();
    let mut last = Nanos::ZERO;
    for _ in 0..2_000 {
        machine.record_event(event, stream).unwrap();
        let requested = machine.now();
        machine.synchronize_event(event).unwrap();
        let at = machine.recorded_at(event).unwrap().unwrap();
        assert!(last < at && at < machine.now(), "{last}, {at}");
        assert!(at + machine.figures().visibility <= machine.now(), "seen before it could be");
        let (reported, was) = times(&machine, base, event);
        assert!((reported - was).abs() <= 500 && requested > last);
        last = at;
    }
}

#[test]
fn elapsed_times_have_the_precision_of_a_float() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let [base, early, late] = [(); 3].map(|()| machine.create_event(context, true).unwrap());
    let spin = |micros| {
        machine.launch(stream, Launch::whole(Kernel::Spin(Some(Nanos::from_micros(micros)))))
    };
    machine.record_event(base, stream).unwrap();
    machine.synchronize_event(base).unwrap();
    // 1000 s later, 20 us apart.
    setup.clock.set(machine.now() + Nanos::from_millis(1_000_000));
    machine.record_event(early, stream).unwrap();
    spin(20).unwrap();
    machine.record_event(late, stream).unwrap();
    machine.synchronize_event(late).unwrap();
    let elapsed = |from, to| milliseconds(machine.elapsed(from, to).unwrap().unwrap());
    assert!((elapsed(early, late) - 0.021).abs() < 1e-6, "near each other they are exact");
    let apart = elapsed(base, late) - elapsed(base, early);
    let step = elapsed(base, late).next_up() - elapsed(base, late);
    assert!((0.06..0.07).contains(&step), "a step of {step} ms");
    assert!(apart == 0.0 || (apart - step).abs() < f32::EPSILON, "{apart} ms");
    assert_eq!(
        machine.elapsed(late, base),
        Ok(Some(-machine.elapsed(base, late).unwrap().unwrap()))
    );
    let untimed = machine.create_event(context, false).unwrap();
    machine.record_event(untimed, stream).unwrap();
    assert_eq!(machine.elapsed(base, untimed), Err(Error::NotRecorded));
}

#[test]
fn clock_drift_and_steps_change_only_elapsed_times() {
    let mut setup = Setup::new();
    setup.settings.figures.clock_rate = ClockRate(-100_000);
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let events = [(); 4].map(|()| machine.create_event(context, true).unwrap());
    let record_after = |event, seconds: u64| {
        setup.clock.set(machine.now() + Nanos::from_millis(1_000 * seconds));
        machine.record_event(event, stream).unwrap();
        machine.synchronize_event(event).unwrap();
    };
    record_after(events[0], 1);
    record_after(events[1], 10);
    let another = setup.machine();
    another.set_clock(0, ClockRate(50_000), 0).unwrap();
    record_after(events[2], 10);
    another.set_clock(0, ClockRate(50_000), -20_000_000_000).unwrap();
    record_after(events[3], 1);
    let off = |from, to| {
        let (reported, was) = times(&machine, from, to);
        reported - was
    };
    let near =
        |off: i64, expected: i64| assert!((off - expected).abs() <= 1_000, "{off} for {expected}");
    near(off(events[0], events[1]), -1_000_000);
    near(off(events[1], events[2]), 500_000);
    near(off(events[2], events[3]), -19_999_950_000);
}
