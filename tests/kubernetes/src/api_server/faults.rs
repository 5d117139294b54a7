//! Injected faults.

use std::time::Duration;

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// It is refused with this status and reason, and not executed.
    Refuse(u16, &'static str),
    /// The connection breaks, and it is not executed.
    Disconnect,
    /// It is executed, and then the connection breaks, so that the client does not know the result.
    DoAndDisconnect,
    /// It is executed after this delay.
    Wait(Duration),
}

/// A fault and the requests that it applies to.
#[derive(Clone, Debug)]
pub struct Fault {
    /// GET, POST, ...; empty: all.
    pub method: &'static str,
    /// Text that the path with its query must contain.
    pub contains: String,
    /// Number of matching requests that pass first.
    pub after: usize,
    /// Number of requests that it applies to.
    pub times: usize,
    /// What happens to them.
    pub action: FaultAction,
}

impl Fault {
    /// Returns a fault of the next matching request.
    #[must_use]
    pub fn next(method: &'static str, contains: &str, action: FaultAction) -> Self {
        Self::times(1, method, contains, action)
    }

    /// Returns a fault of the next matching requests.
    #[must_use]
    pub fn times(times: usize, method: &'static str, contains: &str, action: FaultAction) -> Self {
        Self { method, contains: contains.to_owned(), after: 0, times, action }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Vec<Fault>,
    /// Number of coming events that no watch receives.
    pub lose: usize,
    /// Whether watches report nothing for now.
    pub hold: bool,
    /// Whether every event is sent twice.
    pub double: bool,
}

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        self.rules.push(fault);
    }

    pub(crate) fn of(&mut self, method: &str, path: &str) -> Option<FaultAction> {
        let fits = |rule: &&mut Fault| {
            (rule.method.is_empty() || rule.method == method)
                && path.contains(&rule.contains)
                && rule.times > 0
        };
        let rule = self.rules.iter_mut().find(fits)?;
        if rule.after > 0 {
            rule.after -= 1;
            return None;
        }
        rule.times -= 1;
        Some(rule.action.clone())
    }
}
