//! Live resize: what an annotation of a claim makes of its shares. Pure.
//!
//! A claim is immutable, and the scheduler goes on counting what it consumed. So an annotation
//! lowers memory, weight and cores, and raises them again up to that, never beyond.
//! Its syntax is that of [`cgpu_kubernetes_core::resize`].

use std::fmt;

use cgpu_kubernetes_core::quantity;
use cgpu_kubernetes_core::refusal::{Refusal, quoted};
pub use cgpu_kubernetes_core::resize::{ANNOTATION, Outcome};
use cgpu_kubernetes_core::resize::{Amounts, parsed};

use crate::allocation::{Access, NodeClaim, Share};
use crate::capacity::{CORES, Capacity, MEMORY, MEMORY_STEP, WEIGHT};

/// Names of the amounts.
const NAMES: [&str; 3] = [MEMORY, WEIGHT, CORES];

/// Returns a claim with its shares resized as its annotation says; without one, as claimed.
///
/// # Errors
/// The annotation is not understood, or an amount is more than what the claim consumes.
pub fn resized(claim: &NodeClaim, annotation: Option<&str>) -> Result<NodeClaim, Refusal> {
    let refuse = |why: String| {
        Refusal::new(format!("{}: the annotation {ANNOTATION} is refused: {why}", claim.title()))
    };
    let form = "memory=AMOUNT, weight=NUMBER or cores=NUMBER";
    let requests = parsed(annotation.unwrap_or_default(), &NAMES, form).map_err(refuse)?;
    let is_known = |request: &str| claim.shares.iter().any(|share| share.request == request);
    if let Some(unknown) = requests.keys().copied().flatten().find(|request| !is_known(request)) {
        return Err(refuse(format!("the claim has no request {} here", quoted(unknown))));
    }
    let mut resized = claim.clone();
    for share in &mut resized.shares {
        let own = requests.get(&Some(share.request.as_str()));
        let amounts = own.or_else(|| requests.get(&None));
        let Access::Limited { capacity, resized, .. } = &mut share.access else {
            if own.is_some() {
                return Err(refuse(format!(
                    "request {} has adminAccess, and no limit",
                    share.request
                )));
            }
            continue;
        };
        let wanted = match amounts {
            Some(amounts) => lowered(*capacity, amounts).map_err(refuse)?,
            None => *capacity,
        };
        // Once resized, a running container may have to be raised to what was claimed.
        if resized.is_some() || wanted != *capacity {
            *resized = Some(wanted);
        }
    }
    Ok(resized)
}

/// Describes what the shares of a claim have, for a message.
#[must_use]
pub fn described(claim: &NodeClaim) -> String {
    struct Has<'a>(&'a Share);
    impl fmt::Display for Has<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{} has {} of {}", self.0.request, self.0.granted(), self.0.device)
        }
    }
    let limited = claim.shares.iter().filter(|share| !share.is_admin());
    limited.map(|share| Has(share).to_string()).collect::<Vec<_>>().join(", ")
}

/// Returns what is consumed with these amounts in place of it. Memory is rounded up to
/// [`MEMORY_STEP`], as the scheduler rounds a request.
fn lowered(consumed: Capacity, amounts: &Amounts<'_>) -> Result<Capacity, String> {
    let amount = |name: &str, consumed: u64| {
        let Some(text) = amounts.get(name) else { return Ok(consumed) };
        let wanted = quantity::whole(text).map_err(|invalid| invalid.of(name, text))?;
        if wanted == 0 {
            return Err(format!("{name} is 0"));
        }
        if wanted > consumed {
            return Err(format!(
                "{name} is {}, more than the {consumed} that the claim consumes: make a new claim",
                quoted(text)
            ));
        }
        Ok(wanted)
    };
    // At most what is consumed, which is of this type.
    let small = |name: &str, consumed: u32| {
        amount(name, consumed.into()).map(|amount| u32::try_from(amount).unwrap_or(consumed))
    };
    let memory = amount(MEMORY, consumed.memory)?.next_multiple_of(MEMORY_STEP);
    Ok(Capacity {
        memory: memory.min(consumed.memory),
        weight: small(WEIGHT, consumed.weight)?,
        cores: small(CORES, consumed.cores)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{GIB, claim, pool, result};
    use serde_json::{Value, json};

    /// Requests `main`, twice, and `other`.
    fn claimed() -> NodeClaim {
        let mut second = result("gpu-1", "4Gi", 3);
        second["shareID"] = "t".into();
        let mut other = result("gpu-1", "2Gi", 1);
        other["request"] = "other/small".into();
        let results = json!([result("gpu-0", "4Gi", 3), second, other]);
        NodeClaim::of(&claim(&results, &Value::Null), &pool()).unwrap()
    }

    fn granted(claim: &NodeClaim) -> Vec<(u64, u32)> {
        let of = |share: &Share| (share.granted().memory, share.granted().weight);
        claim.shares.iter().map(of).collect()
    }

    #[test]
    fn annotation_lowers_shares_and_raises_them_again() {
        let claimed = claimed();
        let all = [(4 * GIB, 3), (4 * GIB, 3), (2 * GIB, 1)];
        let of = |claim: &NodeClaim, text: &str| granted(&resized(claim, Some(text)).unwrap());
        for (text, expected) in [
            ("memory=1Gi", [(GIB, 3), (GIB, 3), (GIB, 1)]),
            ("weight=1", [(4 * GIB, 1), (4 * GIB, 1), (2 * GIB, 1)]),
            (" main : memory = 3Gi , weight=2 ;", [(3 * GIB, 2), (3 * GIB, 2), (2 * GIB, 1)]),
            ("other: memory=1Gi; memory=2Gi", [(2 * GIB, 3), (2 * GIB, 3), (GIB, 1)]),
            ("other:memory=1Gi;main:weight=3", [(4 * GIB, 3), (4 * GIB, 3), (GIB, 1)]),
            ("main: memory=1000Mi", [(GIB, 3), (GIB, 3), (2 * GIB, 1)]),
            ("", all),
        ] {
            assert_eq!(of(&claimed, text), expected, "{text}");
        }
        // Each annotation counts from what was claimed, and what is consumed stays.
        let low = resized(&claimed, Some("memory=1Gi,weight=1")).unwrap();
        assert_eq!(of(&low, "memory=2Gi"), [(2 * GIB, 3), (2 * GIB, 3), (2 * GIB, 1)]);
        let again = resized(&low, None).unwrap();
        assert_eq!(granted(&again), all);
        for claim in [&low, &again] {
            let consumed = |claim: &NodeClaim| -> Vec<Capacity> {
                claim.shares.iter().map(Share::consumed).collect()
            };
            assert_eq!(consumed(claim), consumed(&claimed));
            assert!(claim.shares.iter().any(Share::is_resized));
        }
        assert_eq!(resized(&claimed, None), Ok(claimed.clone()));
        assert!(!claimed.shares.iter().any(Share::is_resized));
        assert_eq!(
            described(&low),
            "main has 1024 MiB, weight 1 of gpu-0, main has 1024 MiB, weight 1 of gpu-1, \
             other has 1024 MiB, weight 1 of gpu-1"
        );
    }

    #[test]
    fn amount_beyond_the_claim_is_refused() {
        for (text, message) in [
            ("main: memory=4097Mi", "memory is `4097Mi`, more than the 4294967296 that the claim"),
            ("main: weight=4", "weight is `4`, more than the 3 that the claim consumes"),
            ("main: memory=1Gi,cores=10", "cores is `10`, more than the 0 that the claim"),
            ("weight=2", "weight is `2`, more than the 1 that the claim consumes"),
        ] {
            let refusal = resized(&claimed(), Some(text)).unwrap_err().to_string();
            let start = "claim test/c: the annotation cgpu.dev/resize is refused: ";
            assert!(refusal.starts_with(&format!("{start}{message}")), "{refusal}");
            assert!(refusal.ends_with(": make a new claim"), "{refusal}");
        }
    }

    #[test]
    fn annotation_that_is_not_understood_is_refused() {
        for (text, message) in [
            ("4Gi", "`4Gi` is not memory=AMOUNT"),
            ("memory=4Gi weight=1", "memory is `4Gi weight=1`, which is not a quantity"),
            ("mem=4Gi", "`mem=4Gi` is not memory=AMOUNT"),
            ("memory=1Gi,memory=1Gi", "names memory twice"),
            ("main: weight=1; main: weight=2", "`main: weight=2` is the second entry"),
            ("weight=1; weight=1", "`weight=1` is the second entry"),
            ("mian: weight=1", "no request `mian` here"),
            ("memory=0", "memory is 0"),
            ("weight=0", "weight is 0"),
            ("weight=-1", "weight is `-1`, which is negative"),
            ("weight=1500m", "not a whole number"),
            ("main:", "`` is not memory=AMOUNT"),
        ] {
            let refusal = resized(&claimed(), Some(text)).unwrap_err().to_string();
            assert!(refusal.contains(message), "{text}: {refusal}");
        }
    }

    #[test]
    fn share_for_administration_is_not_resized() {
        let mut admin = result("gpu-0", "4Gi", 3);
        admin["adminAccess"] = true.into();
        admin["request"] = "admin".into();
        let results = json!([admin, result("gpu-1", "4Gi", 3)]);
        let claimed = NodeClaim::of(&claim(&results, &Value::Null), &pool()).unwrap();
        let low = resized(&claimed, Some("memory=1Gi")).unwrap();
        assert_eq!(granted(&low), [(0, 0), (GIB, 3)]);
        let refusal = resized(&claimed, Some("admin: memory=1Gi")).unwrap_err().to_string();
        assert!(refusal.contains("adminAccess"), "{refusal}");
    }
}
