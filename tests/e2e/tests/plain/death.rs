//! A process may die anywhere: the others run on, and nothing is left on the books.

use std::time::Duration;

use cgpu_e2e::{Child, Outcome, Scene};

/// A small deterministic generator: a failing run can be repeated.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn a_hundred_kills_leave_nothing_on_the_books() {
    let scene = Scene::new("A10:23028");
    // Room for the dead as well, whose memory lingers: a newcomer must always find enough for its context.
    let container = scene.limited("a", 20 * 1024);
    let mut draw = Draw(20_260_101);
    let mut started = 0;
    let mut start = || {
        let mut command = scene.program_in(&container, "churn");
        started += 1;
        command.args([started.to_string().as_str(), "8M"]);
        let mut child = Child::start_for(command, Duration::from_secs(280));
        child.line();
        child
    };
    let mut children: Vec<Child> = (0..4).map(|_| start()).collect();
    for _ in 0..100 {
        std::thread::sleep(Duration::from_micros(draw.below(20_000)));
        let victim = usize::try_from(draw.below(4)).expect("below four");
        let replaced = std::mem::replace(&mut children[victim], start());
        assert_eq!(replaced.kill().signal(), Some(libc::SIGKILL), "the victim had ended before");
        for child in &mut children {
            assert!(child.runs(), "a neighbour of the dead ended");
        }
    }
    for child in children {
        child.finish().silent();
    }
    scene.wait_until_empty(&container);
}

#[test]
fn memory_of_the_dead_can_be_had_again() {
    let scene = Scene::new("A10:23028");
    let container = scene.limited("a", 4096);
    for _ in 0..5 {
        let mut command = scene.program_in(&container, "hold");
        command.arg("3G");
        let mut holder = Child::start(command);
        assert!(holder.line().contains("\"held\": 3221225472"), "3 of 4 GiB are to be had");
        holder.kill();
    }
    let mut command = scene.program_in(&container, "alloc_fill");
    command.arg("64M");
    Outcome::of(command).silent();
}
