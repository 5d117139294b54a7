//! Several processes of one container.

use super::*;

#[test]
fn gpu_time_of_siblings_counts() {
    alone(
        |role| {
            let region = &role.harness.regions[0];
            region.shared().header.high_water.store(2, Ordering::Relaxed);
            let sibling = region.cell(gpu(), SlotIndex(1));
            sibling.turn.store(Turn::new(1, TurnState::Yours).0, Ordering::Relaxed);
            sibling.spent.store(ms(4).0, Ordering::Relaxed);
            set_turn(role.harness, 0, 1, TurnState::Yours, ms(6));
            for _ in 0..20 {
                role.sleep(ms(1));
                role.harness.grantors[0].beat();
            }
            let ran = role.harness.gpu(|gpu| gpu.ran[&0]);
            assert!((us(1_800)..us(2_300)).contains(&ran), "{ran}");
            set_turn(role.harness, 0, 2, TurnState::Open, Nanos::ZERO);
        },
        |role, program| saturate(role, program, us(60), BEGIN + ms(19)),
    );
}

/// One after the other: with a switch of 100 us for each change of process, nearly all of the
/// container's turns is work, and each process has its share.
#[test]
fn processes_of_a_container_have_its_turns_one_after_the_other() {
    for (slices, cost) in [([6, 6], 60), ([15, 5], 60), ([6, 6], 400), ([2, 2], 20)] {
        let harness = Harness::of(&[4, 1]);
        harness.gpu(|gpu| gpu.switch = us(100));
        let end = BEGIN + ms(2000);
        let opens: [AtomicU32; 5] = Default::default();
        let gates = gates(&harness, &opens);
        let actor = |number: usize| {
            let gate = &gates[number];
            move |role: &Role<'_>| {
                role.sleep(us(10 + 7 * number as u64));
                saturate(role, &Program::new(gate, role.platform(number)), us(cost), end);
            }
        };
        let lengths = slices.map(ms);
        let report = Mutex::new(monitor::Report::default());
        harness.run(&[
            &|role| *report.lock().expect("a report") = run_turns(role, &lengths, end),
            &actor(0),
            &actor(1),
            &actor(2),
            &actor(3),
            &actor(4),
        ]);
        let turns = report.into_inner().expect("a report").turns;
        let (ran, switches) = harness.gpu(|gpu| (gpu.ran.clone(), gpu.switches));
        let together: u64 = (0..4).map(|tenant| ran[&tenant].0).sum();
        let message = format!("{slices:?} {cost} us: {ran:?}, {switches} changes in {turns} turns");
        println!("{message}");
        // One for each turn, and one for each hold time within long ones.
        let holds = 1.0 + (slices[0] as f64 / 6.0).floor() / 2.0;
        assert!((switches as f64) < turns as f64 * holds * 1.15, "{message}");
        for tenant in 0..4 {
            let part = ran[&tenant].0 as f64 * 4.0 / together as f64;
            // A process whose time a long turn's end has shortened is not compensated.
            let fair = if slices[0] > 6 { 0.3 } else { 0.1 };
            assert!((part - 1.0).abs() < fair, "{message}");
        }
    }
}

/// A mostly idle process leaves the turn to its sibling and loses little of its own speed.
#[test]
fn pausing_sibling_yields_and_resumes() {
    let harness = Harness::of(&[2]);
    let end = BEGIN + ms(500);
    let opens: [AtomicU32; 2] = Default::default();
    let gates = gates(&harness, &opens);
    harness.run(&[
        &|role| {
            set_turn(role.harness, 0, 1, TurnState::Yours, ms(1_000_000));
            while role.now() < end {
                role.sleep(ms(100));
                role.harness.grantors[0].beat();
            }
        },
        &|role| {
            role.sleep(us(50));
            saturate(role, &Program::new(&gates[0], role.platform(0)), us(60), end);
        },
        &|role| {
            role.sleep(us(90));
            let program = Program::new(&gates[1], role.platform(1));
            while role.now() < end {
                let begun = role.now();
                program.launch(2, STREAM, us(500));
                program.driver.synchronize(STREAM);
                assert!(role.now() - begun < ms(10), "a hold time and what is in flight");
                role.sleep(ms(5));
            }
        },
    ]);
    let ran = harness.gpu(|gpu| gpu.ran.clone());
    println!("{ran:?} of 500 ms");
    assert!(ran[&0] > ms(430) && ran[&1] > ms(25), "{ran:?}");
}

/// Two processes whose kernels wait for each other.
#[test]
fn processes_whose_kernels_wait_for_each_other_go_on() {
    let harness = Harness::of(&[2]);
    let opens: [AtomicU32; 2] = Default::default();
    let gates = gates(&harness, &opens);
    let rounds = [Mutex::new(0_u32), Mutex::new(0_u32)];
    let end = BEGIN + ms(3000);
    let actor = |number: usize| {
        let (gate, rounds) = (&gates[number], &rounds);
        move |role: &Role<'_>| {
            role.sleep(us(50 + 40 * number as u64));
            let program = Program::new(gate, role.platform(number));
            let mut round = 0;
            while role.now() < end {
                program.launch(1, STREAM, us(60));
                round += 1;
                *rounds[number].lock().expect("a number") = round;
                // It ends when the other process's kernel has been launched, and stays in flight
                // until then.
                while *rounds[1 - number].lock().expect("a number") < round && role.now() < end {
                    program.driver.host(STREAM, us(100));
                    role.sleep(us(100));
                }
            }
        }
    };
    harness.run(&[
        &|role| {
            let mut epoch = 1;
            while role.now() < end {
                set_turn(role.harness, 0, epoch, TurnState::Yours, ms(6));
                role.sleep(ms(6));
                set_turn(role.harness, 0, epoch + 1, TurnState::Wait, Nanos::ZERO);
                role.sleep(ms(6));
                role.harness.grantors[0].beat();
                epoch += 2;
            }
            set_turn(role.harness, 0, epoch, TurnState::Open, Nanos::ZERO);
        },
        &actor(0),
        &actor(1),
    ]);
    let [one, other] = rounds.map(|rounds| rounds.into_inner().expect("a number"));
    println!("{one} and {other} rounds in 3 s of which half are ours");
    assert!(one > 60 && one.abs_diff(other) <= 1, "{one} and {other}");
}
