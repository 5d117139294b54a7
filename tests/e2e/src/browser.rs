//! A headless Chromium with one page, driven by its DevTools protocol over pipes.

use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Child, Fixture, find, skip};

/// Names of its program in distributions.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Width of the window.
const WIDTH: u32 = 1200;
/// Options that keep it from connections of its own. Root has no sandbox; the only page is ours.
const OPTIONS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-breakpad",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-pipe",
];

/// A page in a browser.
pub struct Browser {
    process: Child,
    session: Option<String>,
    last: u64,
    problems: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Opens a page, or returns None after recording the skip.
    ///
    /// # Panics
    /// The browser does not start.
    #[must_use]
    pub fn open(test: &str, fixture: &Fixture, address: &str) -> Option<Self> {
        let Some(program) = PROGRAMS.iter().find_map(|name| find(name)) else {
            skip(test, "chromium", "there is no chromium here");
            return None;
        };
        let profile = tempfile::tempdir().expect("a folder");
        // It reads descriptor 3 and writes to 4.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh"]);
        command.arg(program).args(OPTIONS);
        command.arg(format!("--window-size={WIDTH},900"));
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        let process = Child::start_with_separator(command, fixture.lifetime(), 0);
        let (session, problems) = (None, Vec::new());
        let mut browser = Self { process, session, last: 0, problems, _profile: profile };
        let target = browser.request("Target.createTarget", json!({"url": "about:blank"}));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.request("Target.attachToTarget", target);
        browser.session = Some(attached["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page", "Runtime", "Log"] {
            browser.request(&format!("{domain}.enable"), json!({}));
        }
        browser.request("Page.navigate", json!({"url": address}));
        Some(browser)
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.process.write(&format!("{message}\0"));
        loop {
            let reply: Value = serde_json::from_str(&self.process.answer()).expect("JSON");
            if reply["id"] == self.last {
                assert!(reply["error"].is_null(), "{method}: {reply}");
                return reply["result"].clone();
            }
            let is_problem = reply["method"] == "Runtime.exceptionThrown"
                || reply["params"]["entry"]["level"] == "error";
            if is_problem {
                self.problems.push(reply["params"].to_string());
            }
        }
    }

    /// Returns the value of a JavaScript expression in the page.
    ///
    /// # Panics
    /// The expression throws.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let reply = self.request("Runtime.evaluate", params);
        assert!(reply["exceptionDetails"].is_null(), "{expression}: {reply:#}");
        reply["result"]["value"].clone()
    }

    /// Returns a picture of the whole page, a PNG in base64.
    ///
    /// # Panics
    /// There is none.
    pub fn picture(&mut self) -> String {
        let height = self.evaluate("document.documentElement.scrollHeight");
        let clip = json!({"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1});
        let params = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let reply = self.request("Page.captureScreenshot", params);
        reply["data"].as_str().expect("a picture").to_owned()
    }

    /// Returns the uncaught exceptions and logged errors so far, such as of what the page's policy
    /// forbids, and forgets them.
    pub fn problems(&mut self) -> Vec<String> {
        std::mem::take(&mut self.problems)
    }
}
