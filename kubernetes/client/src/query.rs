//! Which objects are meant.

/// All, or those of a namespace, with these fields and labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pub(crate) namespace: Option<String>,
    fields: Vec<String>,
    labels: Vec<String>,
}

impl Query {
    /// All of them.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Those of this namespace.
    #[must_use]
    pub fn namespace(mut self, name: impl Into<String>) -> Self {
        self.namespace = Some(name.into());
        self
    }

    /// Those for which this holds as well, such as `spec.nodeName=n1` or `status.phase!=Failed`.
    #[must_use]
    pub fn field(mut self, selector: impl Into<String>) -> Self {
        self.fields.push(selector.into());
        self
    }

    /// Those for which this holds as well, such as `app=x`, `app in (x,y)` or `app`.
    #[must_use]
    pub fn label(mut self, selector: impl Into<String>) -> Self {
        self.labels.push(selector.into());
        self
    }

    /// As the API server reads it, with these parameters beside.
    pub(crate) fn parameters(&self, others: &[(&str, &str)]) -> String {
        let mut text = form_urlencoded::Serializer::new(String::new());
        if !self.fields.is_empty() {
            text.append_pair("fieldSelector", &self.fields.join(","));
        }
        if !self.labels.is_empty() {
            text.append_pair("labelSelector", &self.labels.join(","));
        }
        text.extend_pairs(others).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_joins_and_escapes_selectors() {
        let query =
            Query::all().field("spec.nodeName=").field("status.phase!=Failed").label("a in (b,c)");
        assert_eq!(
            query.parameters(&[("limit", "5")]),
            "fieldSelector=spec.nodeName%3D%2Cstatus.phase%21%3DFailed&labelSelector=a+in+%28b%2Cc%29&limit=5"
        );
        assert_eq!(Query::all().parameters(&[]), "");
    }
}
