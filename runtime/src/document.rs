//! A JSON parser that refuses documents which readers understand differently.
//!
//! If a name occurs twice in an object, most readers take the last value, but Go's, and so runc's,
//! merges both: what is checked here would not be what runc uses. Go also matches names whatever
//! their case, and takes two letters outside of ASCII for `s` and `k`.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Parses a document.
///
/// # Errors
/// It is not JSON, has a name twice in one object, or a number that is not an integer of 64 bits.
pub fn parse(text: &[u8]) -> serde_json::Result<Value> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = Unambiguous.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

/// Returns whether some reader may take `name` for `known` (ASCII), although it is written
/// differently.
#[must_use]
pub fn is_taken_for(name: &str, known: &str) -> bool {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    name != known && name.chars().map(fold).eq(known.chars().map(|c| c.to_ascii_lowercase()))
}

struct Unambiguous;

impl<'de> DeserializeSeed<'de> for Unambiguous {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unambiguous {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    // Configurations have no such numbers, and writing them again could change them.
    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Err(E::custom(format!("{value} is not an integer of 64 bits")))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Unambiguous)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Unambiguous)?;
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!(
                    "the name `{}` occurs twice",
                    name.escape_default()
                )));
            }
            object.insert(name, value);
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_agrees_with_other_readers() {
        let text = br#" {"a": [1, -2, 18446744073709551615, null, true, "\u00e9\n", {}],
                "b": {"a": 1}, "A": 0} "#;
        assert_eq!(parse(text).unwrap(), serde_json::from_slice::<Value>(text).unwrap());
        for wrong in [
            &b"{"[..],
            b"{} {}",
            b"",
            b"\xff",
            b"[1e999]",
            b"[0.5]",
            b"[18446744073709551616]",
            b"{\"a\": 1,}",
        ] {
            assert!(parse(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn duplicate_name_at_any_depth_is_refused() {
        for text in [r#"{"a": 1, "a": 1}"#, r#"[{"b": [{"a": {}, "\u0061": {}}]}]"#] {
            assert!(
                parse(text.as_bytes())
                    .unwrap_err()
                    .to_string()
                    .contains("the name `a` occurs twice")
            );
        }
    }

    #[test]
    fn name_matches_as_in_go() {
        for name in ["Process", "PROCESS", "proce\u{17f}s"] {
            assert!(is_taken_for(name, "process"), "{name}");
        }
        assert!(
            is_taken_for("HOO\u{212a}S", "hooks") && is_taken_for("createruntime", "createRuntime")
        );
        assert!(!is_taken_for("process", "process") && !is_taken_for("procéss", "process"));
    }
}
