//! Selection of objects.

/// Selects objects by namespace, fields and labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pub(crate) namespace: Option<String>,
    fields: Vec<String>,
    labels: Vec<String>,
}

impl Query {
    /// Selects all objects.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Selects those of a namespace.
    #[must_use]
    pub fn namespace(mut self, name: impl Into<String>) -> Self {
        self.namespace = Some(name.into());
        self
    }

    /// Adds a field selector, such as `spec.nodeName=n1` or `status.phase!=Failed`.
    #[must_use]
    pub fn field(mut self, selector: impl Into<String>) -> Self {
        self.fields.push(selector.into());
        self
    }

    /// Adds a label selector, such as `app=x`, `app in (x,y)` or `app`.
    #[must_use]
    pub fn label(mut self, selector: impl Into<String>) -> Self {
        self.labels.push(selector.into());
        self
    }

    /// Returns the query string, with the parameters `others` added.
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
            "fieldSelector=spec.nodeName%3D%2Cstatus.phase%21%3DFailed\
             &labelSelector=a+in+%28b%2Cc%29&limit=5"
        );
        assert_eq!(Query::all().parameters(&[]), "");
    }
}
