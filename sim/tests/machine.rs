//! The machine on a virtual clock in one process: the results of calls, exact to the nanosecond.

use std::sync::Arc;
use std::sync::mpsc::channel;

use cgpu_shm::atomic::{AtomicU32, AtomicU64, Ordering};
use cgpu_sim::clock::{Clock, VirtualClock};
use cgpu_sim::machine::{CopyKind, Fill, Launch, Pitched, StreamKind, WaitCondition, Width};
use cgpu_sim::settings::Figures;
use cgpu_sim::{Bytes, Error, GpuSpec, Kernel, Machine, Nanos, Settings};

struct Setup {
    _directory: tempfile::TempDir,
    settings: Settings,
    clock: VirtualClock,
}

impl Setup {
    fn new() -> Self {
        Self::with(Figures::default())
    }

    fn with(figures: Figures) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let settings = Settings {
            state: directory.path().join("segment"),
            gpus: Some(GpuSpec::parse_list("A10:23028,T4:4096").unwrap()),
            time_scale_milli: 1_000,
            figures,
        };
        let clock = VirtualClock::default();
        clock.set(Nanos::from_millis(1));
        Self { _directory: directory, settings, clock }
    }

    fn machine(&self) -> Machine {
        Machine::open_with(&self.settings, Clock::Virtual(self.clock.clone())).unwrap()
    }
}

fn spin(micros: u64) -> Launch {
    Launch::whole(Kernel::Spin(Some(Nanos::from_micros(micros))))
}

fn address_of<T>(word: &T) -> u64 {
    core::ptr::from_ref(word).expose_provenance() as u64
}

#[test]
fn launch_takes_latency_length_and_visibility() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    machine.launch(stream, spin(10)).unwrap();
    machine.synchronize_stream(stream).unwrap();
    // The first kernel of a context includes a switch.
    let figures = machine.figures();
    let first =
        Nanos::from_micros(10) + figures.launch_latency + figures.switch + figures.visibility;
    assert_eq!(machine.now(), Nanos::from_millis(1) + first);
    let before = machine.now();
    machine.launch(stream, spin(10)).unwrap();
    assert!(!machine.is_stream_done(stream).unwrap());
    machine.synchronize_stream(stream).unwrap();
    assert_eq!(machine.now() - before, first - figures.switch);
    assert!(machine.is_stream_done(stream).unwrap());
    assert_eq!(machine.context_busy(context).unwrap(), Nanos::from_micros(20));
    assert_eq!(machine.processes(0).unwrap()[0].kernels, 2);
}

#[test]
fn full_queue_blocks_until_there_is_space() {
    let setup = Setup::with(Figures { queue_depth: 16, ..Figures::default() });
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let figures = *machine.figures();
    let begun = machine.now();
    (0..16).for_each(|_| drop(machine.launch(stream, spin(1_000))));
    assert_eq!(machine.now() - begun, Nanos(16 * figures.launch_cost.0), "there was room");
    machine.launch(stream, spin(1_000)).unwrap();
    let one_done =
        figures.launch_latency + figures.switch + Nanos::from_millis(1) + figures.visibility;
    assert_eq!(machine.now() - begun, one_done);
}

#[test]
fn elapsed_time_between_events_is_exact() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let [start, middle, end] = [(); 3].map(|()| machine.create_event(context, true).unwrap());
    assert_eq!(machine.elapsed(start, end), Err(Error::NotRecorded));
    assert!(machine.is_event_done(start).unwrap(), "never recorded is done");
    machine.record_event(start, stream).unwrap();
    machine.launch(stream, spin(60)).unwrap();
    machine.record_event(middle, stream).unwrap();
    machine.launch(stream, spin(500)).unwrap();
    machine.record_event(end, stream).unwrap();
    assert_eq!(machine.elapsed(start, end), Ok(None));
    machine.synchronize_event(middle).unwrap();
    assert!(machine.is_event_done(start).unwrap() && !machine.is_event_done(end).unwrap());
    machine.synchronize_event(end).unwrap();
    // A record takes 1 us on the GPU. Its timestamp is at its end, in units of 0.5 us.
    assert_eq!(machine.elapsed(start, middle), Ok(Some(61_000)));
    assert_eq!(machine.elapsed(start, end), Ok(Some(562_000)));
    assert_eq!(machine.elapsed(end, start), Ok(Some(-562_000)));
    let untimed = machine.create_event(context, false).unwrap();
    machine.record_event(untimed, stream).unwrap();
    machine.synchronize_event(untimed).unwrap();
    assert_eq!(machine.elapsed(start, untimed), Err(Error::NotRecorded));
    machine.destroy_event(start).unwrap();
    assert_eq!(machine.is_event_done(start), Err(Error::NoEvent));
}

/// A record that another follows is reported as complete at once, without the delay until the last
/// one becomes visible.
#[test]
fn event_reported_complete_has_a_time() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let [start, end, next] = [(); 3].map(|()| machine.create_event(context, true).unwrap());
    machine.record_event(start, stream).unwrap();
    machine.launch(stream, spin(60)).unwrap();
    machine.record_event(end, stream).unwrap();
    machine.record_event(next, stream).unwrap();
    assert!(!machine.is_event_done(end).unwrap());
    while !machine.is_event_done(end).unwrap() {
        setup.clock.set(machine.now() + Nanos(100));
    }
    assert!(!machine.is_event_done(next).unwrap(), "the last one is not to be seen yet");
    assert_eq!(machine.elapsed(start, end), Ok(Some(61_000)));
}

#[test]
fn event_recorded_again_drops_its_first_record() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let [fast, slow] =
        [(); 2].map(|()| machine.create_stream(context, StreamKind::NonBlocking).unwrap());
    let event = machine.create_event(context, true).unwrap();
    machine.launch(slow, spin(5_000)).unwrap();
    machine.record_event(event, slow).unwrap();
    machine.record_event(event, fast).unwrap();
    machine.synchronize_event(event).unwrap();
    let at = machine.recorded_at(event).unwrap().unwrap();
    machine.synchronize_stream(slow).unwrap();
    assert_eq!(
        machine.recorded_at(event).unwrap(),
        Some(at),
        "the first record changes nothing any more"
    );
}

#[test]
fn stream_waits_for_event_of_another_gpu() {
    let setup = Setup::new();
    let machine = setup.machine();
    let [here, there] = [0, 1].map(|gpu| machine.create_context(gpu).unwrap());
    let [first, second] = [here, there]
        .map(|context| machine.create_stream(context, StreamKind::NonBlocking).unwrap());
    let [event, after] = [here, there].map(|context| machine.create_event(context, true).unwrap());
    machine.launch(first, spin(3_000)).unwrap();
    machine.record_event(event, first).unwrap();
    machine.wait_event(second, event).unwrap();
    machine.record_event(after, second).unwrap();
    machine.synchronize_stream(second).unwrap();
    let [event, after] = [event, after].map(|event| machine.recorded_at(event).unwrap().unwrap());
    assert!(after > event, "{after} {event}");
    let never = machine.create_event(here, true).unwrap();
    assert_eq!(machine.wait_event(second, never), Ok(None));
}

#[test]
fn legacy_stream_is_a_barrier_for_blocking_streams_only() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let legacy = machine.legacy_stream(context).unwrap();
    let blocking = machine.create_stream(context, StreamKind::Blocking).unwrap();
    let free = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let marks = [blocking, legacy, blocking, free].map(|stream| {
        machine.launch(stream, spin(100)).unwrap();
        let event = machine.create_event(context, true).unwrap();
        machine.record_event(event, stream).unwrap();
        event
    });
    machine.synchronize_context(context).unwrap();
    let [before, barrier, after, beside] =
        marks.map(|event| machine.recorded_at(event).unwrap().unwrap());
    assert!(before < barrier && barrier < after);
    assert!(beside < barrier, "a non-blocking stream knows no barrier");
    assert_eq!(
        machine.destroy_stream(legacy),
        Err(Error::Invalid("a legacy stream exists as long as its context"))
    );
}

#[test]
fn memory_operations_are_in_stream_order() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let words: [AtomicU64; 2] = Default::default();
    let gate = AtomicU32::new(0);
    let write = |word: &AtomicU64, value| {
        // SAFETY: the words outlive the machine's use of them: the stream is waited for below.
        unsafe { machine.write_value(stream, address_of(word), Width::Eight, value) }.unwrap()
    };
    machine.launch(stream, spin(50)).unwrap();
    let first = write(&words[0], 1);
    // SAFETY: as above.
    let opened = unsafe {
        machine.wait_value(stream, address_of(&gate), Width::Four, WaitCondition::AtLeast, 3)
    };
    let second = write(&words[1], 2);
    assert_eq!(words[0].load(Ordering::Acquire), 0, "the kernel before it has not run");
    machine.wait(first).unwrap();
    assert_eq!(words[0].load(Ordering::Acquire), 1);
    setup.clock.set(machine.now() + Nanos::from_millis(50));
    assert!(!machine.is_done(second).unwrap());
    assert_eq!(words[1].load(Ordering::Acquire), 0);
    gate.store(3, Ordering::Release);
    machine.perform_effects().unwrap();
    machine.wait(second).unwrap();
    assert!(machine.is_done(opened.unwrap()).unwrap());
    assert_eq!(words[1].load(Ordering::Acquire), 2);
    // SAFETY: refused before any memory is accessed.
    let odd = unsafe { machine.write_value(stream, address_of(&words) + 1, Width::Four, 0) };
    assert!(matches!(odd, Err(Error::Invalid(_))));
}

#[test]
fn host_function_blocks_only_its_stream() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let (calls, received) = channel();
    for number in 0..3 {
        let calls = calls.clone();
        machine.launch(stream, spin(10)).unwrap();
        machine.host_function(stream, Box::new(move || calls.send(number).unwrap())).unwrap();
    }
    assert!(received.try_recv().is_err());
    machine.synchronize_stream(stream).unwrap();
    assert_eq!(received.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn copies_move_bytes_at_the_speed_of_their_engine() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let size = 12_000_000_u64;
    let device = [(); 2].map(|()| machine.allocate(context, Bytes(size)).unwrap());
    let source: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let mut target = vec![0_u8; source.len()];
    let there = source.as_ptr().expose_provenance() as u64;
    let back = target.as_mut_ptr().expose_provenance() as u64;
    let begun = machine.now();
    // SAFETY: both vectors live until the stream was waited for, and are not accessed before.
    unsafe { machine.copy(stream, CopyKind::HostToDevice, Pitched::line(device[0], there, size)) }
        .unwrap();
    machine.synchronize_stream(stream).unwrap();
    let figures = *machine.figures();
    // 12 MB at 12 GB/s.
    let expected =
        figures.launch_latency + figures.copy_latency + Nanos::from_millis(1) + figures.visibility;
    assert_eq!(machine.now() - begun, expected);
    for (kind, to, from) in [
        (CopyKind::DeviceToDevice, device[1], device[0]),
        (CopyKind::DeviceToHost, back, device[1]),
    ] {
        // SAFETY: as above.
        unsafe { machine.copy(stream, kind, Pitched::line(to, from, size)) }.unwrap();
    }
    machine.synchronize_stream(stream).unwrap();
    assert!(target == source);
    // SAFETY: refused before any memory is accessed.
    let beyond = unsafe {
        machine.copy(stream, CopyKind::DeviceToHost, Pitched::line(back, device[0] + 1, size))
    };
    assert_eq!(beyond, Err(Error::NoAllocation));
    machine.free(device[0]).unwrap();
    // SAFETY: as above.
    let freed =
        unsafe { machine.copy(stream, CopyKind::DeviceToHost, Pitched::line(back, device[0], 1)) };
    assert_eq!(freed, Err(Error::NoAllocation));
}

#[test]
fn pitched_copies_and_fills_change_only_their_rows() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let device = machine.allocate(context, Bytes(512)).unwrap();
    let whole = Fill { to: device, value: 0xEE, size: 1, elements: 512, rows: 1, pitch: 0 };
    machine.fill(stream, whole).unwrap();
    machine
        .fill(
            stream,
            Fill { value: 0x0102_0304, size: 4, elements: 2, rows: 3, pitch: 64, ..whole },
        )
        .unwrap();
    let mut target = [0_u8; 24];
    let down = Pitched {
        to: target.as_mut_ptr().expose_provenance() as u64,
        from: device + 4,
        width: 8,
        rows: 3,
        slices: 1,
        to_pitch: (8, 0),
        from_pitch: (64, 0),
    };
    // SAFETY: the array lives until the stream was waited for, and is not accessed before.
    unsafe { machine.copy(stream, CopyKind::DeviceToHost, down) }.unwrap();
    machine.synchronize_stream(stream).unwrap();
    let row = [4, 3, 2, 1, 0xEE, 0xEE, 0xEE, 0xEE];
    assert_eq!(target, [row, row, row].concat()[..]);
    let beyond = machine.fill(stream, Fill { rows: 9, pitch: 64, elements: 2, size: 4, ..whole });
    assert_eq!(beyond, Err(Error::NoAllocation));
    assert!(matches!(machine.fill(stream, Fill { size: 3, ..whole }), Err(Error::Invalid(_))));
}

#[test]
fn copies_overlap_kernels_of_others() {
    let setup = Setup::new();
    let machine = setup.machine();
    let [computes, copies] = [(); 2].map(|()| machine.create_context(0).unwrap());
    let [kernels, bytes] = [computes, copies]
        .map(|context| machine.create_stream(context, StreamKind::NonBlocking).unwrap());
    machine.launch(kernels, Launch::whole(Kernel::Persistent)).unwrap();
    let device = machine.allocate(copies, Bytes(1 << 20)).unwrap();
    let source = vec![7_u8; 1 << 20];
    let there = source.as_ptr().expose_provenance() as u64;
    let begun = machine.now();
    // SAFETY: the vector lives until the ticket is done.
    let ticket = unsafe {
        machine.copy(bytes, CopyKind::HostToDevice, Pitched::line(device, there, 1 << 20))
    };
    machine.wait(ticket.unwrap()).unwrap();
    assert!(machine.now() - begun < Nanos::from_micros(200), "no slice, no switch");
    // A record after a copy does not need the context's turn either.
    let mark = machine.create_event(copies, true).unwrap();
    machine.record_event(mark, bytes).unwrap();
    machine.synchronize_event(mark).unwrap();
    assert_eq!(machine.context_busy(copies).unwrap(), Nanos::ZERO);
}

#[test]
fn memory_accounting_is_exact() {
    let setup = Setup::new();
    let [machine, other] = [setup.machine(), setup.machine()];
    let start = machine.memory_info(1).unwrap();
    assert_eq!(start.total, Bytes::from_mib(4_096));
    assert!(start.reserved >= Bytes::from_mib(200) && start.used == Bytes::ZERO);
    let context = machine.create_context(1).unwrap();
    let foreign = other.create_context(1).unwrap();
    let cost = machine.figures().context_memory;
    let free = machine.memory_info(1).unwrap().free;
    assert_eq!(free, start.usable() - cost - cost);
    let most = Bytes(free.0 / (2 << 20) * (2 << 20));
    assert_eq!(machine.allocate(context, most + Bytes(1)), Err(Error::OutOfMemory));
    let all = machine.allocate(context, most).unwrap();
    assert_ne!(all, 0);
    assert_eq!(
        other.allocate(foreign, Bytes(1)),
        Err(Error::OutOfMemory),
        "the GPU is full for every process"
    );
    assert_eq!(other.create_context(1).unwrap_err(), Error::OutOfMemory);
    machine.free(all).unwrap();
    let small = other.allocate(foreign, Bytes(1)).unwrap();
    assert_eq!(other.memory_info(1).unwrap().free, free - Bytes(2 << 20));
    assert_eq!(
        machine.free(small),
        Err(Error::NoAllocation),
        "another process's address says nothing here"
    );
    let mine = other.processes(1).unwrap();
    assert_eq!(mine.iter().map(|each| each.memory.0).sum::<u64>(), 2 * cost.0 + (2 << 20));
    drop(other);
    assert_eq!(
        machine.memory_info(1).unwrap().used,
        cost,
        "a process that ends normally leaves nothing"
    );
    machine.destroy_context(context).unwrap();
    assert_eq!(machine.memory_info(1).unwrap(), start);
}

#[test]
fn addresses_are_unique_across_gpus() {
    let setup = Setup::new();
    let machine = setup.machine();
    let contexts = [0, 1].map(|gpu| machine.create_context(gpu).unwrap());
    let mut ranges = Vec::new();
    for round in 0..200_u64 {
        let size = if round % 3 == 0 { 3 << 20 } else { round * 100 + 1 };
        for context in contexts {
            ranges.push((machine.allocate(context, Bytes(size)).unwrap(), size));
        }
    }
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
    for &(address, size) in &ranges {
        assert_eq!(machine.allocation(address + size - 1).unwrap().address, address);
        machine.free(address).unwrap();
    }
    assert_eq!(machine.free(ranges[0].0), Err(Error::NoAllocation));
}

#[test]
fn destroyed_context_frees_everything() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let event = machine.create_event(context, true).unwrap();
    let called = Arc::new(AtomicU32::new(0));
    let held = Arc::clone(&called);
    machine.launch(stream, Launch::whole(Kernel::Persistent)).unwrap();
    machine.record_event(event, stream).unwrap();
    let never =
        machine.host_function(stream, Box::new(move || held.store(1, Ordering::Relaxed))).unwrap();
    setup.clock.set(machine.now() + Nanos::from_millis(5));
    assert!(!machine.is_done(never).unwrap());
    machine.destroy_context(context).unwrap();
    machine.wait(never).unwrap();
    assert_eq!(
        (called.load(Ordering::Relaxed), Arc::strong_count(&called)),
        (0, 1),
        "dropped, not called"
    );
    assert_eq!(machine.launch(stream, spin(1)), Err(Error::NoStream));
    assert_eq!(machine.is_event_done(event), Err(Error::NoEvent));
    assert_eq!(machine.allocate(context, Bytes(1)), Err(Error::NoContext));
    assert_eq!(machine.destroy_context(context), Err(Error::NoContext));
    assert!(machine.processes(0).unwrap().is_empty());
}

#[test]
fn objects_of_other_processes_are_refused() {
    let setup = Setup::new();
    let [machine, other] = [setup.machine(), setup.machine()];
    let context = other.create_context(0).unwrap();
    let stream = other.create_stream(context, StreamKind::Blocking).unwrap();
    let event = other.create_event(context, true).unwrap();
    assert_eq!(machine.create_stream(context, StreamKind::Blocking), Err(Error::NoContext));
    assert_eq!(machine.launch(stream, spin(1)), Err(Error::NoStream));
    assert_eq!(machine.destroy_event(event), Err(Error::NoEvent));
    assert_eq!(machine.create_context(2), Err(Error::NoGpu));
}

#[test]
fn peers_on_two_gpus_meet_and_end() {
    let setup = Setup::new();
    let machine = setup.machine();
    let streams = [0, 1].map(|gpu| {
        let context = machine.create_context(gpu).unwrap();
        machine.create_stream(context, StreamKind::NonBlocking).unwrap()
    });
    for name in ["wait_peer_3", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"] {
        let launch = Launch::whole(Kernel::named(name));
        let first = machine.launch(streams[0], launch).unwrap();
        setup.clock.set(machine.now() + Nanos::from_millis(20));
        assert!(!machine.is_done(first).unwrap(), "{name} spins until its peer has started");
        let second = machine.launch(streams[1], launch).unwrap();
        machine.wait(first).unwrap();
        machine.wait(second).unwrap();
    }
}

#[test]
fn collective_of_a_process_with_one_gpu_does_not_wait() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let kernel = Kernel::named("ncclDevKernel_AllGather_RING_LL");
    machine.launch(stream, Launch::whole(kernel)).unwrap();
    machine.synchronize_stream(stream).unwrap();
    assert_eq!(machine.context_busy(context).unwrap(), machine.figures().kernel);
}

#[test]
fn reused_stream_slot_is_a_new_stream() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let ticket = machine.launch(stream, spin(1_000)).unwrap();
    machine.destroy_stream(stream).unwrap();
    assert_eq!(machine.launch(stream, spin(1)), Err(Error::NoStream), "closing");
    let other = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    assert_ne!(other, stream, "the old stream still has queued work");
    machine.wait(ticket).unwrap();
    let again = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    assert_eq!(again, stream);
    assert!(machine.is_done(ticket).unwrap() && machine.is_stream_done(again).unwrap());
}

#[test]
fn code_takes_memory_in_blocks_and_keeps_it() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let used = || machine.memory_info(0).unwrap().used.0 >> 20;
    let (before, begun) = (used(), machine.now());
    machine.load_code(context).unwrap();
    assert_eq!(used() - before, 2);
    assert_eq!(machine.now(), begun + machine.figures().load_cost);
    (0..31).for_each(|_| machine.load_code(context).unwrap());
    assert_eq!(used() - before, 2, "32 functions of 64 KiB");
    machine.load_code(context).unwrap();
    assert_eq!(used() - before, 4);
    // Loading fails only if the GPU is full.
    while machine.allocate(context, Bytes::from_mib(2)).is_ok() {}
    (0..31).for_each(|_| machine.load_code(context).unwrap());
    assert_eq!(machine.load_code(context), Err(Error::OutOfMemory));
    machine.check().unwrap();
    machine.destroy_context(context).unwrap();
    assert_eq!(machine.memory_info(0).unwrap().used, Bytes::ZERO);
}

#[test]
fn named_events_belong_to_every_process() {
    let setup = Setup::new();
    let [maker, other] = [setup.machine(), setup.machine()];
    let [here, there] = [&maker, &other].map(|machine| {
        let context = machine.create_context(0).unwrap();
        (context, machine.create_stream(context, StreamKind::NonBlocking).unwrap())
    });
    let timed = maker.create_event(here.0, true).unwrap();
    assert!(matches!(maker.name_event(timed), Err(Error::Invalid(_))));
    let event = maker.create_event(here.0, false).unwrap();
    assert_eq!(maker.event_name(event).unwrap(), None);
    assert_eq!(other.record_event(event, there.1), Err(Error::NoEvent), "it is the maker's alone");
    maker.name_event(event).unwrap();
    let name = maker.event_name(event).unwrap().unwrap();
    assert!(matches!(maker.open_event(event.get(), name), Err(Error::Invalid(_))), "one's own");
    assert_eq!(other.open_event(event.get(), name + 1), Err(Error::NoEvent));
    assert_eq!(other.open_event(event.get(), name), Ok((event, 0)));

    // The other process waits on the GPU for the creator's stream, and the creator for the other's.
    maker.launch(here.1, spin(500)).unwrap();
    let first = maker.record_event(event, here.1).unwrap();
    other.wait_event(there.1, event).unwrap();
    other.launch(there.1, spin(300)).unwrap();
    let second = other.record_event(event, there.1).unwrap();
    maker.wait_event(here.1, event).unwrap();
    assert!(!other.is_event_done(event).unwrap());
    maker.synchronize_stream(here.1).unwrap();
    assert!(other.is_done(first).unwrap() && maker.is_done(second).unwrap());
    maker.check().unwrap();

    assert_eq!(other.destroy_event(event), Err(Error::NoEvent), "only its creator can destroy it");
    maker.destroy_event(event).unwrap();
    assert_eq!(other.event_name(event).unwrap(), None);
    assert_eq!(other.open_event(event.get(), name), Err(Error::NoEvent));
    let next = maker.create_event(here.0, false).unwrap();
    assert_eq!(next, event, "the record is used again");
    assert_eq!(other.record_event(next, there.1), Err(Error::NoEvent));
}

/// A wait for an event of a process that ends is dropped with that process's work.
#[test]
fn waits_for_events_of_an_ended_process_end() {
    let setup = Setup::new();
    let [maker, other] = [setup.machine(), setup.machine()];
    let context = maker.create_context(0).unwrap();
    let event = maker.create_event(context, false).unwrap();
    maker.name_event(event).unwrap();
    let stream = maker.create_stream(context, StreamKind::NonBlocking).unwrap();
    maker.launch(stream, Launch::whole(Kernel::Persistent)).unwrap();
    maker.record_event(event, stream).unwrap();
    let there = other.create_context(1).unwrap();
    let waits = other.create_stream(there, StreamKind::NonBlocking).unwrap();
    let ticket = other.wait_event(waits, event).unwrap().unwrap();
    assert!(!other.is_done(ticket).unwrap());
    drop(maker);
    other.synchronize_stream(waits).unwrap();
    assert!(other.is_done(ticket).unwrap());
    other.check().unwrap();
}

/// With MPS, the kernels of two processes run concurrently, each in its own time.
#[test]
fn processes_under_mps_compute_concurrently() {
    let setup = Setup::with(Figures { mps: 1, ..Figures::default() });
    let machines = [setup.machine(), setup.machine()];
    let half = |machine: &Machine| machine.gpus()[0].footprint(216, 256, 0, 32).unwrap();
    let streams = machines.each_ref().map(|machine| {
        let context = machine.create_context(0).unwrap();
        machine.create_stream(context, StreamKind::NonBlocking).unwrap()
    });
    let begun = machines[0].now();
    for (machine, stream) in machines.iter().zip(streams) {
        let kernel = Kernel::Spin(Some(Nanos::from_millis(5)));
        machine.launch(stream, Launch { kernel, footprint: half(machine) }).unwrap();
    }
    for (machine, stream) in machines.iter().zip(streams) {
        machine.synchronize_stream(stream).unwrap();
    }
    let took = machines[0].now() - begun;
    assert!(took < Nanos::from_millis(6), "{took}");
    let spent = machines[0].engine_time(0).unwrap();
    assert_eq!(spent.switches, 1);
    let uses = machines[0].processes(0).unwrap();
    assert!(
        uses.iter().all(|each| each.busy == Nanos::from_millis(5) && each.kernels == 1),
        "{uses:?}"
    );
    assert!(spent.busy < Nanos::from_millis(6), "{spent:?}");
}

/// On a real clock: a host function may wait for what the program's thread does next.
#[test]
fn host_functions_never_run_on_a_program_thread() {
    let setup = Setup::new();
    let machine = Machine::open(&setup.settings).unwrap();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let (calls, received) = channel();
    for _ in 0..50 {
        let calls = calls.clone();
        let ticket = machine
            .host_function(
                stream,
                Box::new(move || calls.send(std::thread::current().id()).unwrap()),
            )
            .unwrap();
        // Polls as often as possible while the stream reaches the function.
        while !machine.is_done(ticket).unwrap() {
            machine.perform_effects().unwrap();
        }
    }
    let by: Vec<_> = received.try_iter().collect();
    assert_eq!(by.len(), 50);
    assert!(by.iter().all(|thread| *thread != std::thread::current().id()));
}
