//! The web page and its data as JSON (`docs/internals/web-page.md`). Pure: it reads a status, and
//! changes nothing.
//!
//! | module | what it is |
//! |---|---|
//! | [`history`] | samples of the last hour, in bounded memory |
//! | `page.html` | the page: one file without references to others |

use cgpu_client::message::{GpuTurns, Reply, Status};
use cgpu_host_diagnosis::causes::Findings;
use cgpu_host_diagnosis::report::{Report, View, name_simulated};
use cgpu_host_diagnosis::status::{self, StatusOnly};

pub mod history;

/// The page. [`NONCE`] stands for a value that the server chooses for each reply.
pub const HTML: &str = include_str!("page/page.html");
/// What stands in [`HTML`] for the nonce of its style and its script.
pub const NONCE: &str = "@NONCE@";

/// Returns a status as `cgpu smi --json` prints it.
#[must_use]
pub fn status(mut status: Status) -> Option<String> {
    name_simulated(&mut status);
    serde_json::to_string(&Report { monitor: true, view: View::Host, status }).ok()
}

/// Returns the last turns as the control socket replies them.
#[must_use]
pub fn turns(turns: Vec<GpuTurns>) -> Option<String> {
    serde_json::to_string(&Reply::Turns(turns)).ok()
}

/// Returns what `cgpu doctor --json` finds in a status.
#[must_use]
pub fn findings(status: &Status) -> String {
    let mut findings = Findings::default();
    status::check(status, None, &StatusOnly, &mut findings);
    findings.about(None).json().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_refers_to_no_other_file() {
        // The namespace of SVG is a name, not an address. Comments of the script begin with two
        // slashes and a blank.
        let html = HTML.replace("http://www.w3.org/2000/svg", "").replace("// ", "");
        for outside in ["http:", "https:", "//", "@import", "url(", "rel=\"style", "src="] {
            let found = html.find(outside).map(|at| &html[at..(at + 60).min(html.len())]);
            assert_eq!(found, None, "{outside}");
        }
    }

    /// Names are hostile. Text reaches the document as text only, and the policy allows no inline
    /// handler and no attribute of style.
    #[test]
    fn page_makes_no_markup_of_data() {
        for way in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "Function(",
            " onclick=",
            " onload=",
            " style=",
            "srcdoc",
            "DOMParser",
        ] {
            assert!(!HTML.contains(way), "{way}");
        }
        assert_eq!(HTML.matches(NONCE).count(), 2, "style and script");
    }
}
