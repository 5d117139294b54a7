//! The model's two clocks: the virtual one, with which every run is identical, and the real one,
//! which must agree with it.

mod fixture;

use cgpu_sim::clock::{Clock, VirtualClock};
use cgpu_sim::machine::{CopyKind, Launch, Pitched, StreamKind};
use cgpu_sim::settings::Figures;
use cgpu_sim::trace::Trace;
use cgpu_sim::{Bytes, GpuSpec, Kernel, Machine, Nanos, Settings};
use fixture::{Fixture, Habit, ratio};

const SECOND: Nanos = Nanos::from_millis(1_000);

fn settings(directory: &tempfile::TempDir, figures: Figures) -> Settings {
    Settings {
        state: directory.path().join("segment"),
        gpus: Some(GpuSpec::parse_list("A10:23028,T4:15109").unwrap()),
        time_scale_milli: 1_000,
        figures,
    }
}

/// Tests the timeline alone: four tenants with random kernels.
#[test]
fn same_seed_gives_identical_traces() {
    let trace = |seed| {
        let mut fixture = Fixture::new(2, Figures { seed, ..Figures::default() });
        fixture.timeline().trace();
        fixture.tenant(0, "lognormal_60us_0.8", Habit::Saturate);
        fixture.tenant(0, "lognormal_300us_0.5", Habit::Bound(3));
        fixture.tenant(1, "lognormal_100us_0.3", Habit::Synchronise);
        fixture.tenant(1, "spin_2ms", Habit::Saturate);
        fixture.run_until(SECOND);
        let mut spans = Vec::new();
        let lost = fixture.timeline().take_spans(SECOND, &mut spans);
        assert_eq!(lost, 0);
        Trace::of_spans(spans).chrome()
    };
    let first = trace(1);
    assert!(first.len() > 1_000_000, "{} bytes", first.len());
    assert!(first == trace(1), "two runs differ");
    assert!(first != trace(2), "the seed is not used");
}

/// Tests the machine with its segment and several clients. One thread drives them all, and nothing
/// sleeps.
#[test]
fn several_clients_on_one_virtual_clock_give_identical_traces() {
    let trace = |seed| {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let settings = settings(&directory, Figures { seed, ..Figures::default() });
        let clock = VirtualClock::default();
        let clients: Vec<Machine> = (0..3)
            .map(|_| Machine::open_with(&settings, Clock::Virtual(clock.clone())).unwrap())
            .collect();
        clients[0].trace().unwrap();
        let sources = [7_u8; 64];
        let source = core::ptr::from_ref(&sources).expose_provenance() as u64;
        let places: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(which, client)| {
                let context = client.create_context(which / 2).unwrap();
                let stream = client.create_stream(context, StreamKind::NonBlocking).unwrap();
                (client, context, stream, client.allocate(context, Bytes(64)).unwrap())
            })
            .collect();
        for round in 0..400 {
            for &(client, _, stream, address) in &places {
                client.launch(stream, Launch::whole(Kernel::named("lognormal_80us_1.0"))).unwrap();
                if round % 16 == 0 {
                    let what = Pitched::line(address, source, 64);
                    // SAFETY: the bytes live until the end of this function, after all streams were
                    // waited for.
                    unsafe { client.copy(stream, CopyKind::HostToDevice, what) }.unwrap();
                }
            }
            if round % 50 == 49 {
                places[round % 3].0.synchronize_stream(places[round % 3].2).unwrap();
            }
        }
        for (client, context, ..) in &places {
            client.synchronize_context(*context).unwrap();
            client.check().unwrap();
        }
        let mut spans = Vec::new();
        assert_eq!(clients[0].take_spans(&mut spans).unwrap(), 0);
        Trace::of_spans(spans).chrome()
    };
    let first = trace(1);
    assert!(first.len() > 100_000, "{} bytes", first.len());
    assert!(first == trace(1), "two runs differ");
    assert!(first != trace(2), "the seed is not used");
}

/// Compares the same tenants on both clocks: three with different kernels on one GPU, one alone on
/// the other.
#[test]
fn shares_on_real_and_virtual_clock_agree_within_2_percent() {
    // Queues of at least half a second: the thread that fills them may lose its processor for a
    // while.
    let tenants = [(0, 1_000_u64), (0, 3_000), (0, 700), (1, 2_000)];
    let mut fixture = Fixture::new(2, Figures::default());
    for (gpu, micros) in tenants {
        fixture.tenant(gpu, &format!("spin_{micros}us"), Habit::Saturate);
    }
    fixture.run_until(Nanos(2 * SECOND.0));
    let on_virtual: Vec<f64> = (0..tenants.len()).map(|index| fixture.share(index)).collect();

    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let settings = settings(&directory, Figures::default());
    let clients: Vec<_> = tenants
        .iter()
        .map(|&(gpu, micros)| {
            let machine = Machine::open(&settings).unwrap();
            let context = machine.create_context(gpu).unwrap();
            let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
            (
                machine,
                context,
                stream,
                Launch::whole(Kernel::Spin(Some(Nanos::from_micros(micros)))),
            )
        })
        .collect();
    // More than will be computed, but not so much that a call blocks.
    for (machine, _, stream, launch) in &clients {
        for _ in 0..1_000 {
            machine.launch(*stream, *launch).unwrap();
        }
    }
    let read = || -> Vec<(Nanos, Nanos)> {
        let read = |(machine, context, ..): &(Machine, _, _, _)| {
            let before = machine.now();
            let busy = machine.context_busy(*context).unwrap();
            (Nanos(u64::midpoint(before.0, machine.now().0)), busy)
        };
        clients.iter().map(read).collect()
    };
    let before = read();
    std::thread::sleep(core::time::Duration::from_millis(600));
    let after = read();
    for (index, ((from, busy), (to, more))) in before.into_iter().zip(after).enumerate() {
        let on_real = ratio(more - busy, to - from);
        let off = (on_real / on_virtual[index] - 1.0).abs();
        assert!(
            off < 0.02,
            "tenant {index}: {on_real:.4} on the real clock, {:.4} on the virtual",
            on_virtual[index]
        );
    }
    clients[0].0.check().unwrap();
}
