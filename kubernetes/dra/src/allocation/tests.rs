use serde_json::{Value, json};

use super::*;
use crate::fixture::{GIB, claim, pool, result};

fn of(results: &Value) -> Result<NodeClaim, String> {
    of_with(results, &Value::Null)
}

fn of_with(results: &Value, config: &Value) -> Result<NodeClaim, String> {
    NodeClaim::of(&claim(results, config), &pool()).map_err(|refusal| refusal.to_string())
}

fn edited(edit: impl FnOnce(&mut Value)) -> Result<NodeClaim, String> {
    let mut one = result("gpu-0", "2Gi", 3);
    edit(&mut one);
    of(&json!([one]))
}

fn limited(memory: u64, weight: u32, cores: u32) -> Access {
    let capacity = Capacity { memory, weight, cores };
    Access::Limited { capacity, resized: None, high_priority: false }
}

#[test]
fn result_is_a_share_with_its_limits() {
    let claim = of(&json!([result("gpu-1", "2Gi", 3)])).unwrap();
    assert_eq!((claim.title().as_str(), claim.uid.as_str()), ("claim test/c", "u1"));
    let gpu = "GPU-10101010-1010-1010-1010-101010101010";
    assert_eq!(
        claim.shares,
        [Share {
            name: "u1-0".into(),
            request: "main".into(),
            device: "gpu-1".into(),
            share_id: Some("s".into()),
            gpu: gpu.into(),
            access: limited(2 * GIB, 3, 0),
        }]
    );
    let text = claim.shares[0].limits().unwrap().unwrap();
    assert_eq!(text, format!("version 1\nweight 3\ngpu {gpu} 2147483648\n"));
}

#[test]
fn results_of_other_drivers_are_ignored() {
    let mut foreign = result("gpu-0", "1Gi", 1);
    foreign["driver"] = "net.example.com".into();
    foreign["consumedCapacity"] = json!({"bandwidth": "7.5"});
    let claim = of(&json!([foreign, result("gpu-0", "1Gi", 1), foreign])).unwrap();
    let names: Vec<&str> = claim.shares.iter().map(|share| share.name.as_str()).collect();
    assert_eq!(names, ["u1-1"]);
    assert_eq!(of(&json!([foreign])).unwrap().shares, []);
}

#[test]
fn device_given_twice_is_two_shares() {
    let (one, mut other) = (result("gpu-0", "1Gi", 1), result("gpu-0", "2Gi", 2));
    assert!(
        of(&json!([one, other])).unwrap_err().ends_with("two results of the same device and share")
    );
    other["shareID"] = "t".into();
    let shares = of(&json!([one, other, result("gpu-1", "1Gi", 1)])).unwrap().shares;
    let names: Vec<&str> = shares.iter().map(|share| share.name.as_str()).collect();
    assert_eq!(names, ["u1-0", "u1-1", "u1-2"]);
    let sum = shares[..2].iter().fold(Capacity::NONE, |sum, share| sum.and(share.consumed()));
    assert_eq!(sum, Capacity { memory: 3 * GIB, weight: 3, cores: 0 });
}

#[test]
fn alternative_belongs_to_its_request() {
    let config = json!([{"source": "FromClaim", "requests": ["main/large"], "opaque":
        {"driver": "gpu.cgpu.dev", "parameters": {"apiVersion": "cgpu.dev/v1alpha1",
            "kind": "SliceConfig", "highPriority": true}}}]);
    for (request, expected) in [("main/large", true), ("main/small", false)] {
        let mut one = result("gpu-0", "2Gi", 1);
        one["request"] = request.into();
        let share = of_with(&json!([one]), &config).unwrap().shares.remove(0);
        assert_eq!(share.request, "main");
        let high = matches!(share.access, Access::Limited { high_priority: true, .. });
        assert_eq!(high, expected, "{request}");
        assert_eq!(share.limits().unwrap().unwrap().contains("high_priority 1"), expected);
    }
}

#[test]
fn administration_consumes_nothing() {
    let admin = edited(|one| {
        one["adminAccess"] = true.into();
        one["shareID"] = Value::Null;
        one["consumedCapacity"] = Value::Null;
    });
    let share = admin.unwrap().shares.remove(0);
    assert_eq!((share.consumed(), share.limits()), (Capacity::NONE, Ok(None)));
}

#[test]
fn result_without_capacity_is_the_whole_device() {
    for none in [Value::Null, json!({})] {
        let whole = edited(|one| one["consumedCapacity"] = none);
        let share = whole.unwrap().shares.remove(0);
        assert_eq!(share.consumed(), Capacity { memory: 15104 << 20, weight: 20, cores: 0 });
    }
}

#[test]
fn capacity_is_read_under_either_name() {
    let shares = edited(|one| {
        one["consumedCapacity"] = json!({"gpu.cgpu.dev/memory": "128Mi", "weight": 1, "cores": "0"})
    });
    assert_eq!(shares.unwrap().shares[0].access, limited(128 << 20, 1, 0));
}

#[test]
fn result_that_is_not_understood_is_refused() {
    let capacity = |capacity: Value| edited(|one| one["consumedCapacity"] = capacity);
    for (refused, part) in [
        (edited(|one| one["pool"] = "n2".into()), "it is of pool `n2`"),
        (edited(|one| one["device"] = "gpu-7".into()), "it waits for `gpu-7`"),
        (capacity(json!({"memory": "1Gi"})), "it consumes nothing of weight, expected 1 to 25"),
        (capacity(json!({"weight": "1"})), "it consumes no memory"),
        (capacity(json!({"memory": "0", "weight": "1"})), "it consumes no memory"),
        (capacity(json!({"memory": "1Gi", "weight": "26"})), "it consumes 26 of weight"),
        (capacity(json!({"memory": "1Gi", "weight": "0"})), "it consumes 0 of weight"),
        (capacity(json!({"memory": "-1", "weight": "1"})), "its memory is `-1`"),
        (capacity(json!({"memory": "1500m", "weight": "1"})), "not a whole number"),
        (capacity(json!({"memory": "1Gi", "weight": "1", "x": "1"})), "it consumes `x`"),
        (
            capacity(json!({"memory": "1Gi", "gpu.cgpu.dev/memory": "1Gi", "weight": "1"})),
            "it consumes memory twice",
        ),
        (
            capacity(json!({"memory": "1Gi", "weight": "1", "cores": "30"})),
            "which now shares by weight; set its policy to 3",
        ),
    ] {
        let refusal = refused.unwrap_err();
        assert!(refusal.starts_with("claim test/c has the result 1: "), "{refusal}");
        assert!(refusal.contains(part), "{refusal}");
    }
    let mut unallocated = claim(&json!([]), &Value::Null);
    unallocated.status.allocation = None;
    assert!(NodeClaim::of(&unallocated, &pool()).is_err());
    for uid in ["", "../x", "a b", &"u".repeat(64)] {
        let mut named = claim(&json!([]), &Value::Null);
        named.metadata.uid = uid.into();
        assert!(NodeClaim::of(&named, &pool()).is_err(), "{uid}");
    }
}

#[test]
fn cores_are_a_percentage_in_their_mode_alone() {
    let mut pool = pool();
    pool.devices[0].mode = Mode::Cores;
    let given = |cores: Value| {
        let mut one = result("gpu-0", "1Gi", 1);
        one["consumedCapacity"]["cores"] = cores;
        NodeClaim::of(&claim(&json!([one]), &Value::Null), &pool)
            .map_err(|refusal| refusal.to_string())
    };
    let share = given("30".into()).unwrap().shares.remove(0);
    assert_eq!(share.access, limited(GIB, 1, 30));
    assert!(share.limits().unwrap().unwrap().contains("percent 30\n"));
    assert!(given("101".into()).unwrap_err().contains("it consumes 101 of cores"));
    assert!(given("0".into()).unwrap_err().contains("which now shares by cores"));
}
