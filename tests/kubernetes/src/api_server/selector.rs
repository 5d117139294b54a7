//! Field and label selectors.

use serde_json::Value;

#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    fields: Vec<Term>,
    labels: Vec<Term>,
}

#[derive(Clone, Debug)]
struct Term {
    name: String,
    want: Want,
}

#[derive(Clone, Debug)]
enum Want {
    In(Vec<String>),
    NotIn(Vec<String>),
    There,
    NotThere,
}

/// Fields that the real server supports; it refuses others.
const FIELDS: [&str; 7] = [
    "metadata.name",
    "metadata.namespace",
    "spec.nodeName",
    "spec.driver",
    "status.phase",
    "involvedObject.uid",
    "reason",
];

impl Selector {
    /// Parses both selectors.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub(crate) fn parse(fields: &str, labels: &str) -> Result<Self, String> {
        let fields: Vec<Term> = split(fields).map(|text| term(&text)).collect();
        if let Some(term) = fields.iter().find(|term| !FIELDS.contains(&term.name.as_str())) {
            return Err(format!("field label not supported: {}", term.name));
        }
        Ok(Self { fields, labels: split(labels).map(|text| term(&text)).collect() })
    }

    pub(crate) fn node(&self) -> Option<&str> {
        self.fields.iter().filter(|term| term.name == "spec.nodeName").find_map(|term| match &term
            .want
        {
            Want::In(values) => values.first().map(String::as_str),
            _ => None,
        })
    }

    pub(crate) fn fits(&self, object: &Value) -> bool {
        self.fields.iter().all(|term| {
            let at = term.name.split('.').fold(object, |value, part| &value[part]);
            // A missing field is empty.
            term.fits(Some(at.as_str().unwrap_or_default()))
        }) && self
            .labels
            .iter()
            .all(|term| term.fits(object["metadata"]["labels"][&term.name].as_str()))
    }
}

impl Term {
    fn fits(&self, value: Option<&str>) -> bool {
        let among = |values: &[String]| {
            value.is_some_and(|value| values.iter().any(|other| other == value))
        };
        match &self.want {
            Want::In(values) => among(values),
            Want::NotIn(values) => !among(values),
            Want::There => value.is_some(),
            Want::NotThere => value.is_none(),
        }
    }
}

fn split(text: &str) -> impl Iterator<Item = String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for letter in text.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        match letter {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().expect("a part").push(letter),
        }
    }
    parts.into_iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty())
}

fn term(text: &str) -> Term {
    let list = |text: &str| {
        text.trim_matches(['(', ')', ' '])
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let new = |name: &str, want| Term { name: name.trim().to_owned(), want };
    if let Some((name, values)) = text.split_once(" notin ") {
        return new(name, Want::NotIn(list(values)));
    }
    if let Some((name, values)) = text.split_once(" in ") {
        return new(name, Want::In(list(values)));
    }
    if let Some((name, value)) = text.split_once("!=") {
        return new(name, Want::NotIn(vec![value.trim().to_owned()]));
    }
    if let Some((name, value)) = text.split_once('=') {
        return new(name, Want::In(vec![value.trim_start_matches('=').trim().to_owned()]));
    }
    match text.strip_prefix('!') {
        Some(name) => new(name, Want::NotThere),
        None => new(text, Want::There),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_parse_as_kubernetes_parses_them() {
        let pod = json!({"metadata": {"name": "p", "labels": {"app": "x", "tier": "1"}}, "status": {"phase": "Running"}});
        let fits = |fields: &str, labels: &str| Selector::parse(fields, labels).unwrap().fits(&pod);
        for (fields, labels) in [
            ("", ""),
            ("spec.nodeName=", "app=x"),
            ("status.phase!=Failed,status.phase!=Succeeded", "app in (y,x),tier"),
            ("metadata.name==p", "!gone,app!=z,app notin (a,b)"),
        ] {
            assert!(fits(fields, labels), "{fields} {labels}");
        }
        for (fields, labels) in [
            ("spec.nodeName=n", ""),
            ("status.phase!=Running", ""),
            ("", "app=y"),
            ("", "!app"),
            ("", "none"),
        ] {
            assert!(!fits(fields, labels), "{fields} {labels}");
        }
        assert!(Selector::parse("spec.containers=x", "").is_err());
        assert_eq!(
            Selector::parse("spec.nodeName=n,status.phase!=Failed", "").unwrap().node(),
            Some("n")
        );
    }
}
