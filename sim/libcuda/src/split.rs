//! Multiprocessors as a resource: those of a GPU, and parts of them. A part records how many
//! multiprocessors are in each locality domain, not which ones they are.

use cgpu_abi::types::*;
use cgpu_sim::GpuSpec;
use cgpu_sim::gpu::MAX_DOMAINS;

use crate::answer::{Answer, INVALID_RESOURCE_CONFIGURATION, INVALID_VALUE};

/// Numbers of multiprocessors by locality domain; the last number is of those in none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Multiprocessors([c_uint; MAX_DOMAINS + 1]);

/// The parameters of a part; parts with different parameters cannot be combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupOptions {
    /// Number of multiprocessors that share a cluster of the GPU.
    pub(crate) coscheduled: c_uint,
    pub(crate) flags: c_uint,
    pub(crate) domain: c_uint,
}

impl Multiprocessors {
    /// Returns all multiprocessors of a GPU.
    pub(crate) fn of(spec: &GpuSpec) -> Self {
        let mut all = Self::default();
        all.0[..spec.domains()].fill(spec.domain_multiprocessors());
        all.0[MAX_DOMAINS] = spec.multiprocessors() - all.count();
        all
    }

    pub(crate) fn count(&self) -> c_uint {
        self.0.iter().sum()
    }

    pub(crate) fn bytes(&self) -> impl Iterator<Item = u8> {
        self.0.into_iter().flat_map(c_uint::to_le_bytes)
    }

    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut all = Self::default();
        for (count, bytes) in all.0.iter_mut().zip(bytes.chunks_exact(4)) {
            let mut word = [0; 4];
            word.copy_from_slice(bytes);
            *count = c_uint::from_le_bytes(word);
        }
        all
    }

    /// Returns whether each number is at least that of `part`.
    pub(crate) fn holds(&self, part: &Self) -> bool {
        self.0.iter().zip(part.0).all(|(all, part)| part <= *all)
    }

    pub(crate) fn plus(mut self, other: Self) -> Self {
        self.0
            .iter_mut()
            .zip(other.0)
            .for_each(|(count, more)| *count = count.saturating_add(more));
        self
    }

    /// Takes up to `count` multiprocessors from the given domains, in order.
    fn take_from(&mut self, places: &[usize], mut count: c_uint) -> Self {
        let mut taken = Self::default();
        for &place in places {
            let some = self.0[place].min(count);
            self.0[place] -= some;
            taken.0[place] += some;
            count -= some;
        }
        taken
    }

    /// Takes up to `count` multiprocessors from any domain.
    pub(crate) fn take(&mut self, count: c_uint) -> Self {
        self.take_from(&EVERYWHERE, count)
    }

    /// Takes a group of multiprocessors. Writes its size, if the group does not give one.
    pub(crate) fn split_off(
        &mut self,
        group: &mut CU_DEV_SM_RESOURCE_GROUP_PARAMS,
        spec: &GpuSpec,
    ) -> Answer<(Self, GroupOptions)> {
        const KNOWN: c_uint = CU_DEV_SM_RESOURCE_GROUP_BACKFILL
            | CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID
            | CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS;
        let is = |flag| group.flags & flag != 0;
        let backfill = is(CU_DEV_SM_RESOURCE_GROUP_BACKFILL);
        let local = is(CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID);
        let supplemental = is(CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS);
        let greatest = if spec.model.capability.0 >= 9 { 32 } else { 2 };
        let unit = group.coscheduled_sm_count.max(2);
        if group.flags & !KNOWN != 0
            || supplemental && !local
            || group.reserved != [0; 11]
            || group.coscheduled_sm_count > greatest
            || !group.coscheduled_sm_count.is_multiple_of(2)
            || !group.sm_count.is_multiple_of(2)
            || !backfill && !group.sm_count.is_multiple_of(unit)
        {
            return Err(INVALID_VALUE);
        }
        let places = if local {
            places(group.locality_domain_id, spec, supplemental)?
        } else {
            EVERYWHERE.to_vec()
        };
        let available: c_uint = places.iter().map(|&place| self.0[place]).sum();
        let fitting = available / unit * unit;
        let count = match group.sm_count {
            0 if backfill => available,
            0 => fitting,
            count => count,
        };
        let maximum = if backfill { self.count() } else { fitting };
        if count > maximum || group.sm_count != 0 && fitting == 0 {
            return Err(INVALID_RESOURCE_CONFIGURATION);
        }
        group.sm_count = count;
        let mut taken = self.take_from(&places, count);
        let rest = count - taken.count();
        taken = taken.plus(self.take_from(&OUTSIDE_FIRST, rest));
        let domain = if local { group.locality_domain_id } else { 0 };
        Ok((taken, GroupOptions { coscheduled: unit, flags: group.flags, domain }))
    }
}

/// All domains, then those in none.
const EVERYWHERE: [usize; MAX_DOMAINS + 1] = [0, 1, 2, 3, MAX_DOMAINS];
/// Those in no domain, then all domains.
const OUTSIDE_FIRST: [usize; MAX_DOMAINS + 1] = [MAX_DOMAINS, 0, 1, 2, 3];

/// Returns the domains that a domain's number selects; with `more`, also those in none.
fn places(domain: c_uint, spec: &GpuSpec, more: bool) -> Answer<Vec<usize>> {
    let mut places: Vec<usize> = match usize::try_from(domain) {
        _ if domain == CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY => {
            (0..spec.domains()).collect()
        }
        Ok(domain) if domain < spec.domains() => vec![domain],
        _ => return Err(INVALID_VALUE),
    };
    if more {
        places.push(MAX_DOMAINS);
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Failure;

    fn group(
        count: c_uint,
        coscheduled: c_uint,
        flags: c_uint,
        domain: c_uint,
    ) -> CU_DEV_SM_RESOURCE_GROUP_PARAMS {
        CU_DEV_SM_RESOURCE_GROUP_PARAMS {
            sm_count: count,
            coscheduled_sm_count: coscheduled,
            flags,
            locality_domain_id: domain,
            ..Default::default()
        }
    }

    /// Returns the numbers that each group has, and what is left.
    fn split(
        gpu: &str,
        groups: &[(c_uint, c_uint, c_uint, c_uint)],
    ) -> Result<(Vec<c_uint>, c_uint), Failure> {
        let spec = GpuSpec::parse_list(gpu).unwrap()[0];
        let mut all = Multiprocessors::of(&spec);
        let mut counts = Vec::new();
        for &(count, coscheduled, flags, domain) in groups {
            let mut group = group(count, coscheduled, flags, domain);
            let (part, _) = all.split_off(&mut group, &spec)?;
            assert_eq!(part.count(), group.sm_count);
            counts.push(group.sm_count);
        }
        Ok((counts, all.count()))
    }

    #[test]
    fn groups_are_taken_in_order() {
        const BACKFILL: c_uint = CU_DEV_SM_RESOURCE_GROUP_BACKFILL;
        const LOCAL: c_uint = CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID;
        const MORE: c_uint = LOCAL | CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS;
        const ANY: c_uint = CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY;
        let nothing = Err(INVALID_RESOURCE_CONFIGURATION);
        let wrong = Err(INVALID_VALUE);
        for (gpu, groups, due) in [
            ("A10", &[(0, 0, 0, 0)][..], Ok((vec![72], 0))),
            ("A10", &[(10, 2, 0, 0), (0, 2, BACKFILL, 0)], Ok((vec![10, 62], 0))),
            ("H100", &[(8, 4, 0, 0), (0, 32, 0, 0)], Ok((vec![8, 96], 28))),
            ("H100", &[(96, 32, 0, 0), (42, 32, BACKFILL, 0)], nothing.clone()),
            ("H100", &[(64, 32, 0, 0), (42, 32, BACKFILL, 0)], Ok((vec![64, 42], 26))),
            ("B200", &[(0, 0, LOCAL, 0), (0, 0, LOCAL, 1)], Ok((vec![70, 70], 8))),
            ("B200", &[(0, 8, LOCAL, 1)], Ok((vec![64], 84))),
            ("B200", &[(72, 0, LOCAL, 1)], nothing.clone()),
            ("B200", &[(0, 0, MORE, 1)], Ok((vec![78], 70))),
            ("B200", &[(0, 0, LOCAL, ANY)], Ok((vec![140], 8))),
            ("B200", &[(100, 0, LOCAL | BACKFILL, 1), (0, 0, LOCAL, 0)], Ok((vec![100, 48], 0))),
            ("B200", &[(70, 0, LOCAL, 1), (2, 0, LOCAL | BACKFILL, 1)], nothing),
            ("B200", &[(2, 0, LOCAL, 2)], wrong.clone()),
            ("A10", &[(3, 0, 0, 0)], wrong.clone()),
            ("A10", &[(8, 4, 0, 0)], wrong.clone()),
            ("H100", &[(10, 4, 0, 0)], wrong.clone()),
            ("H100", &[(2, 0, MORE & !LOCAL, 0)], wrong.clone()),
            ("H100", &[(2, 0, 8, 0)], wrong),
        ] {
            assert_eq!(split(gpu, groups), due, "{gpu} {groups:?}");
        }
    }
}
