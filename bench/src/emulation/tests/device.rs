//! One program on the emulated GPU, without a monitor.

use super::*;

/// Returns what a program alone, without a monitor, did from the first second to the third.
fn alone(threads: u32, script: &Script<'_>) -> Observed {
    let tenants = [Tenant { threads, ..Tenant::new(1, script) }];
    let length = Nanos::from_millis(3 * SECOND);
    let setup =
        Setup { figures: Figures::default(), policy: None, tenants: &tenants, seed: 1, length };
    let observed = observe(&setup, &[Nanos::from_millis(SECOND), length]).unwrap();
    Observed {
        measured: None,
        kernels: observed[1][0].kernels - observed[0][0].kernels,
        computed: observed[1][0].computed - observed[0][0].computed,
        reported: observed[1][0].reported - observed[0][0].reported,
    }
}

#[test]
fn full_grids_run_in_sequence_and_quarter_grids_in_parallel() {
    let on_four_streams = |grid| {
        alone(1, &|program| {
            while program.goes_on() {
                (0..4).try_for_each(|stream| {
                    program.submit(Work { grid, length: us(500) }, stream)
                })?;
            }
            Ok(())
        })
    };
    let (full, quarter) = (on_four_streams(Grid::Full), on_four_streams(Grid::Quarter));
    assert!((3_980..=4_000).contains(&full.kernels), "{full:?}");
    assert!((15_900..=16_000).contains(&quarter.kernels), "{quarter:?}");
    assert!(quarter.computed <= Nanos::from_millis(2 * SECOND), "{quarter:?}");
}

#[test]
fn kernels_of_a_stream_that_waits_for_another_run_after_its_own() {
    let chained = |joined: bool| {
        alone(1, &move |program| {
            while program.goes_on() {
                program.submit(Work { grid: Grid::Quarter, length: us(500) }, 0)?;
                if joined {
                    program.wait_for_stream(1, 0)?;
                }
                program.submit(Work { grid: Grid::Quarter, length: us(500) }, 1)?;
                if joined {
                    program.wait_for_stream(0, 1)?;
                }
            }
            Ok(())
        })
    };
    let (free, joined) = (chained(false).kernels, chained(true).kernels);
    assert!((7_900..=8_000).contains(&free), "{free}");
    // Two events for a pair of kernels.
    assert!((3_900..=4_000).contains(&joined), "{joined}");
}

#[test]
fn threads_of_a_program_launch_beside_each_other() {
    let kernels = |threads| {
        let script = |program: &Program<'_>| {
            while program.goes_on() {
                program.submit(Work::full(us(20)), program.thread())?;
                program.synchronize_stream(program.thread())?;
                program.compute(us(180));
            }
            Ok(())
        };
        alone(threads, &script).kernels
    };
    let (one, four) = (kernels(1), kernels(4));
    assert!(four.abs_diff(4 * one) <= 4 * one / 50, "{one} and {four}");
}

#[test]
fn copies_overlap_kernels_and_take_their_time() {
    // 96 us at 12 GB/s, and 8 us before the first byte.
    let bytes = Bytes(96 * 12_000);
    let kernels = |copies: bool| {
        let script = |program: &Program<'_>| {
            while program.goes_on() {
                if copies {
                    program.upload(bytes, 1)?;
                    program.download(bytes, 2)?;
                }
                program.submit(Work::full(us(80)), 0)?;
                program.synchronize();
            }
            Ok(())
        };
        alone(1, &script).kernels
    };
    let (without, with) = (kernels(false), kernels(true));
    let period = |kernels: u64| 2_000_000 / kernels;
    assert!((85..100).contains(&period(without)), "{} us", period(without));
    assert!((105..125).contains(&period(with)), "{} us", period(with));
}

#[test]
fn polling_sees_the_end_of_the_last_launch_not_earlier() {
    let earliest = Mutex::new(Nanos::MAX);
    let polls = alone(1, &|program| {
        while program.goes_on() {
            let begun = program.now();
            program.submit(Work::full(us(300)), 0)?;
            while !program.is_over(0)? {
                program.compute(us(4));
            }
            let mut earliest = earliest.lock().unwrap();
            *earliest = earliest.min(program.now() - begun);
        }
        Ok(())
    });
    let earliest = earliest.into_inner().unwrap();
    assert!(earliest >= us(300) && polls.kernels > 6_000, "{earliest}, {polls:?}");
}
