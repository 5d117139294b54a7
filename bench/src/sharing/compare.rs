//! Two tenants without turns: with token buckets that let both compute at once, and with the GPU's
//! own time slicing.
//!
//! A bucket (`load --bucket`) fills with its tenant's part of the time. Every batch is paid with
//! its time by events, and a tenant without tokens waits. The programs run in no container. The
//! error of the method is in the events: slices of the other tenant pass between them.

use anyhow::Result;

use super::load::{Load, TenantSpec};
use super::setup::{Setup, Tenant, together};
use super::shares::{SATURATING, evaluate};
use super::{Bench, Figures, WARM, observe};

/// Percentages of the GPU.
const SET: [u32; 2] = [75, 25];

/// Interval of a chart in milliseconds.
const PICTURE: [u32; 2] = [700, 760];

/// Way to share the GPU.
#[derive(Clone, Copy, PartialEq)]
enum Scheme {
    Turns,
    Buckets,
    Native,
}

impl Scheme {
    fn join(self, setup: &mut Setup, load: Load) -> Result<Vec<Tenant>> {
        SET.iter()
            .map(|&percent| match self {
                Self::Turns => setup.join(&TenantSpec::of(load).weighing(percent / 25)),
                Self::Buckets => setup.native(&Load { bucket: percent, ..load }),
                Self::Native => setup.native(&load),
            })
            .collect()
    }
}

pub(super) fn without_turns(bench: &mut Bench) -> Result<Figures> {
    let mut setup = bench.setup()?;
    let alone = setup.native(&SATURATING.load)?.run(WARM + 2.0, 0.01)?;
    let solo = alone.rate(WARM, alone.length());
    let mut figures = Figures::new();
    for (scheme, error_key, aggregate_key) in [
        (Scheme::Buckets, "bucket_share_error_pct_75_25", "bucket_aggregate_pct_75_25"),
        (Scheme::Native, "native_share_error_pct_75_25", "native_aggregate_pct_75_25"),
    ] {
        let mut tenants = scheme.join(&mut setup, SATURATING.load)?;
        let seen = observe(&setup, &mut tenants, bench.seconds())?;
        let specs = SET.map(|percent| TenantSpec::of(SATURATING.load).weighing(percent));
        figures.push((error_key, evaluate(bench, error_key, &specs, &seen)));
        let all: f64 = seen.tracks.iter().map(|track| track.rate(WARM, track.length())).sum();
        figures.push((aggregate_key, (100.0 * all / solo).into()));
    }
    if bench.gallery.is_open() {
        for (scheme, name) in
            [(Scheme::Turns, "turns"), (Scheme::Buckets, "buckets"), (Scheme::Native, "native")]
        {
            picture(bench, scheme, name)?;
        }
    }
    Ok(figures)
}

/// Draws which tenant had the GPU at what time. Kernels take 200 us, because a journal of shorter
/// ones takes the host too long.
fn picture(bench: &mut Bench, scheme: Scheme, name: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let journal = folder.path().join("journal");
    let mut setup = Setup::journalled(bench.dist, bench.switch, &journal)?;
    let mut tenants = scheme.join(&mut setup, Load::saturating(200))?;
    together(&mut tenants, 1.0, 0.01, |_| Ok(()))?;
    bench.gallery.trace(
        &mut setup.fixture.native(&setup.fixture.file("cgpu-sim")?),
        &journal,
        PICTURE,
        name,
    )
}
