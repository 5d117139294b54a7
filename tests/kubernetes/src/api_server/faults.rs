//! What goes wrong on demand.

use std::time::Duration;

/// What is done to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// It is answered with this number and reason, and not done.
    Refuse(u16, &'static str),
    /// The line is cut, and it is not done.
    Cut,
    /// It is done, and then the line is cut: whoever asked does not know.
    DoAndCut,
    /// It is done after so long.
    Wait(Duration),
}

/// Which requests it is done to.
#[derive(Clone, Debug)]
pub struct Fault {
    /// GET, POST, ...; empty: all.
    pub method: &'static str,
    /// What the path, with what is behind the question mark, must contain.
    pub contains: String,
    /// How many requests are let pass before.
    pub after: usize,
    /// How many it is done to.
    pub times: usize,
    /// What.
    pub action: FaultAction,
}

impl Fault {
    /// The next one of these.
    #[must_use]
    pub fn next(method: &'static str, contains: &str, action: FaultAction) -> Self {
        Self::times(1, method, contains, action)
    }

    /// The next so many of these.
    #[must_use]
    pub fn times(times: usize, method: &'static str, contains: &str, action: FaultAction) -> Self {
        Self { method, contains: contains.to_owned(), after: 0, times, action }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Vec<Fault>,
    /// The next so many things that happen are told to no watch.
    pub lose: usize,
    /// Whether everything is told twice.
    pub double: bool,
}

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        self.rules.push(fault);
    }

    /// What is done to this request.
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
