//! Merge patches, and the part of strategic merge patches that is used.

use serde_json::{Map, Value};

/// Applies a merge patch (RFC 7386): `null` removes, lists are replaced.
pub(crate) fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    for (name, value) in patch {
        if value.is_null() {
            object.as_object_mut().expect("an object").remove(name);
        } else {
            merge(&mut object[name], value);
        }
    }
}

/// Applies a strategic merge patch: lists of objects are merged by their key.
pub(crate) fn strategic(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    for (name, value) in patch.iter().filter(|(name, _)| !name.starts_with('$')) {
        match (&mut object[name], value) {
            (_, Value::Null) => drop(object.as_object_mut().expect("an object").remove(name)),
            (Value::Array(known), Value::Array(items)) if merge_key(name).is_some() => {
                let key = merge_key(name).expect("a key");
                for item in items {
                    match known.iter_mut().find(|other| other[key] == item[key]) {
                        Some(other) => strategic(other, item),
                        None => known.push(item.clone()),
                    }
                }
            }
            (known, value) => strategic(known, value),
        }
    }
}

/// Applies a part of a claim's status (server-side apply): the devices of the drivers in it replace
/// what these had, as their managers do who own them.
pub(crate) fn apply(object: &mut Value, part: &Value) {
    let devices = part["status"]["devices"].as_array().cloned().unwrap_or_default();
    let known = object["status"]["devices"].as_array().cloned().unwrap_or_default();
    let is_others =
        |known: &Value| devices.iter().all(|device| device["driver"] != known["driver"]);
    let kept: Vec<Value> = known.into_iter().filter(is_others).chain(devices.clone()).collect();
    object["status"]["devices"] = kept.into();
}

fn merge_key(list: &str) -> Option<&'static str> {
    match list {
        "conditions" | "addresses" => Some("type"),
        "containers" | "initContainers" | "volumes" | "env" => Some("name"),
        "ownerReferences" => Some("uid"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patches_merge_as_documented() {
        let mut object = json!({"a": {"b": 1, "c": 2}, "l": [1]});
        merge(&mut object, &json!({"a": {"b": null, "d": {"e": null, "f": 3}}, "l": [2]}));
        assert_eq!(object, json!({"a": {"c": 2, "d": {"f": 3}}, "l": [2]}));
        let mut node = json!({"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "A", "address": "1"}]});
        strategic(
            &mut node,
            &json!({"conditions": [{"type": "Ready", "status": "False"}, {"type": "New"}], "addresses": null, "capacity": {"x": "1"}}),
        );
        assert_eq!(
            node,
            json!({"conditions": [{"type": "Ready", "status": "False"}, {"type": "New"}], "capacity": {"x": "1"}})
        );
    }
}
