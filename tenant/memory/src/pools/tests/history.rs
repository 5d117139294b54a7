//! Random histories: after every step, what is charged is what the driver's pools hold.

use proptest::prelude::*;

use super::*;
use crate::pools::growth::least;

#[derive(Clone, Debug)]
enum Step {
    Allocate { pool: usize, size: u64, growth: u64 },
    Refused { pool: usize, size: u64 },
    Free { pool: usize },
    Trim { pool: usize },
    DelayFrees { trims: u32 },
    Linear { size: u64 },
    Destroy { pool: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let pool = 0..3_usize;
    let size = prop_oneof![1..1_u64 << 20, 1_u64 << 20..48_u64 << 20];
    let growth = prop_oneof![5 => Just(32_u64), 3 => 1_u64..80];
    prop_oneof![
        8 => (pool.clone(), size.clone(), growth)
            .prop_map(|(pool, size, growth)| Step::Allocate { pool, size, growth }),
        1 => (pool.clone(), size.clone()).prop_map(|(pool, size)| Step::Refused { pool, size }),
        5 => pool.clone().prop_map(|pool| Step::Free { pool }),
        1 => pool.clone().prop_map(|pool| Step::Trim { pool }),
        1 => (0..4_u32).prop_map(|trims| Step::DelayFrees { trims }),
        2 => size.prop_map(|size| Step::Linear { size }),
        1 => pool.prop_map(|pool| Step::Destroy { pool }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn charges_equal_what_pools_hold_after_every_step(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let fixture = Fixture::new(100);
        let mut ids = [FIRST, SECOND, PoolId(0x300)];
        fixture.tenant.pools().made(ids[2], Some(gpu()), fixture.driver);
        for step in steps {
            match step {
                Step::Allocate { pool, size, growth } => {
                    let growth = mib(growth).max(least(Bytes(size)));
                    let answer = fixture.allocate(ids[pool], Bytes(size), growth);
                    prop_assert!(
                        matches!(answer, Ok(()) | Err(PoolError::Denied(_))),
                        "{:?}",
                        answer
                    );
                }
                Step::Refused { pool, size } => {
                    let answer = fixture.tenant.pools().allocate(
                        ids[pool],
                        Bytes(size),
                        || Err(2),
                        || (),
                        || false,
                    );
                    prop_assert!(answer.is_err());
                }
                Step::Free { pool } => fixture.driver.free(ids[pool]),
                Step::Trim { pool } => {
                    fixture.driver.trim(ids[pool]);
                    fixture.tenant.pools().changed(ids[pool]);
                }
                Step::DelayFrees { trims } => fixture.set_trims_until_freed(trims),
                Step::Linear { size } => drop(fixture.tenant.charge(gpu(), Bytes(size))),
                Step::Destroy { pool } => {
                    if let PoolDestroy::Empty(ended) =
                        fixture.tenant.pools().begin_destroy(ids[pool])
                    {
                        fixture.driver.destroy(ids[pool]);
                        ended.destroyed();
                    }
                    ids[pool] = PoolId(ids[pool].0 + 1);
                    fixture.tenant.pools().made(ids[pool], Some(gpu()), fixture.driver);
                }
            }
            fixture.check();
            prop_assert!(fixture.used() <= mib(100));
        }
    }
}
