//! The controller against a virtual card: shares, loss, reaction, deaths, lies; thousands of simulated seconds.
#![allow(clippy::cast_precision_loss)] // figures for people and bounds of percents

mod card;
mod process;
mod world;

use cgpu_monitor::controller::policy::Policy;
use process::{Load, MS};
use world::{SECOND, World, share_error, utilisation};

const WEIGHTED: Policy = Policy::Weighted { conserving: true };
const LOAD: &[Load] = &[Load::saturating(60)];

/// Runs for a while, then measures; prints what came out.
fn measure(name: &str, world: &mut World, weights: &[u64], time: u64) -> (f64, f64) {
    world.run_for(SECOND);
    let steps = world.steps;
    let ran = world.run_and_measure(time);
    let (error, used) = (share_error(&ran, weights), utilisation(&ran, time));
    let rate = (world.steps - steps) as f64 * SECOND as f64 / time as f64;
    println!("{name}: share error {error:.3} %, card used {used:.2} %, {rate:.0} steps/s");
    for number in 0..weights.len() {
        let share = world.share(number);
        println!(
            "  {number}: ran {:.1} ms, turns {}, {:?}",
            ran[number] as f64 / 1e6,
            share.books.turns,
            share.books.odd
        );
    }
    (error, used)
}

#[test]
fn saturating_tenants_get_their_shares() {
    for weights in [&[1, 1][..], &[3, 1], &[9, 1], &[4, 3, 2, 1], &[1; 8]] {
        let tenants: Vec<(u32, &[Load])> = weights.iter().map(|&weight| (weight, LOAD)).collect();
        let mut world = World::new(WEIGHTED, &tenants);
        let weights: Vec<u64> = weights.iter().map(|&weight| u64::from(weight)).collect();
        let (error, used) = measure(&format!("{weights:?}"), &mut world, &weights, 20 * SECOND);
        assert!(error <= 1.0, "{weights:?}: {error:.3} %");
        assert!(used >= if weights.len() > 4 { 96.5 } else { 98.0 }, "{weights:?}: {used:.2} %");
    }
}
