//! The monitor's web page in a browser: what it shows of real containers, of hostile names, and of
//! a monitor that ends.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cgpu_e2e::{Browser, Child, Fixture, Monitor, Outcome, Worker};
use serde_json::{Value, json};

use crate::watcher::endpoint;

struct Page<'a> {
    browser: Browser,
    fixture: &'a Fixture,
}

impl<'a> Page<'a> {
    fn open(test: &str, fixture: &'a Fixture, at: &str) -> Option<Self> {
        Some(Self { browser: Browser::open(test, fixture, &format!("http://{at}/"))?, fixture })
    }

    /// Waits until an expression is true. Until the page is loaded, it may throw.
    fn eventually(&mut self, expression: &str) {
        let guarded = format!("(() => {{ try {{ return {expression} }} catch {{}} }})()");
        let fixture = self.fixture;
        let mut polls = 0;
        fixture.eventually(expression, || {
            std::thread::sleep(Duration::from_millis(100));
            polls += 1;
            let is_true = self.browser.evaluate(&guarded) == json!(true);
            if !is_true && polls % 50 == 0 {
                eprintln!("{}", self.text("body"));
            }
            is_true.then_some(())
        });
    }

    fn text(&mut self, selector: &str) -> String {
        let selector = Value::from(selector);
        let text = self.browser.evaluate(&format!("document.querySelector({selector})?.innerText"));
        text.as_str().unwrap_or_default().to_owned()
    }

    fn number(&mut self, expression: &str) -> u64 {
        let found = self.browser.evaluate(expression);
        found.as_u64().unwrap_or_else(|| panic!("{expression}: {found}"))
    }
}

fn configuration(at: &str) -> String {
    format!("tree = \"none\"\nmetrics = \"{at}\"\n")
}

/// With CGPU_PICTURES (`cargo xtask pictures`) the containers share the GPU for twelve minutes, and
/// a picture of the page is saved to that folder.
#[test]
fn page_shows_gpus_containers_turns_and_a_restart() {
    let pictures = std::env::var_os("CGPU_PICTURES").map(PathBuf::from);
    let minutes = if pictures.is_some() { 12 } else { 0 };
    let fixture = Fixture::new("A10:23028").with_extra_time(Duration::from_secs(minutes * 60));
    let at = endpoint();
    let monitor = Monitor::start_with(&fixture, &configuration(&at));
    let test = "page_shows_gpus_containers_turns_and_a_restart";
    let Some(mut page) = Page::open(test, &fixture, &at) else { return };
    page.eventually("!document.getElementById('empty').hidden");
    assert!(page.text("#empty").contains("cgpu run --mem 4GiB"), "{}", page.text("body"));
    let containers = [("notebook", 1), ("trainer", 2)]
        .map(|(name, weight)| fixture.limited(name, 8192).with_weight(weight));
    let mut workers = containers
        .each_ref()
        .map(|container| Worker::start_with_kernels(&fixture, container, 2000));
    let busy = Duration::from_secs(minutes * 60 + 90).as_secs_f64();
    workers.iter_mut().for_each(|worker| worker.begin(busy));
    let hold = |at: usize, amount: &str| {
        let mut command = fixture.program_in(&containers[at], "hold");
        command.args([amount, "900"]);
        let mut child = Child::start_for(command, fixture.lifetime());
        child.line();
        child
    };
    let _held = [hold(0, "1500M"), hold(1, "3G")];
    let mut beyond = fixture.program_in(&containers[0], "hold");
    beyond.arg("9G");
    Outcome::of(beyond).exits(4);
    page.eventually("document.querySelectorAll('tbody tr').length === 2");
    assert!(page.text("h2").contains("NVIDIA A10") || page.text("section.gpu h2").contains("A10"));
    page.eventually("document.querySelectorAll('section.gpu svg rect').length > 20");
    // Rows are in the order of the containers' ids.
    let row = |at: usize| format!("document.querySelectorAll('tbody tr')[{at}].innerText");
    for (at, name, weight) in [(0, "notebook", 1), (1, "trainer", 2)] {
        let row = page.browser.evaluate(&row(at)).as_str().unwrap_or_default().to_owned();
        let has = |text: &str| row.contains(text);
        assert!(has(name) && has(&format!("weight {weight}")) && has("/ 8192 MiB"), "{row:?}");
    }
    let measured = |row: usize| {
        let cell = format!("document.querySelectorAll('tbody tr')[{row}].cells[3].innerText");
        format!("parseFloat({cell}.replace('~', ''))")
    };
    page.eventually(&format!("{1} > 45 && {0} < 45 && {0} > 20", measured(0), measured(1)));
    // Charts have an area for each container, from the next sample on.
    page.eventually("document.querySelectorAll('svg polygon').length >= 4");
    // What `cgpu doctor` says of the refused allocation.
    page.eventually("document.querySelector('#findings').innerText.includes('(over_limit')");
    let findings = page.text("#findings");
    assert!(findings.contains("container notebook") && findings.contains("do: Raise the limit"));
    if let Some(folder) = pictures {
        let quarter = Duration::from_secs(minutes * 15);
        std::thread::sleep(quarter);
        let more = hold(1, "2500M");
        std::thread::sleep(2 * quarter);
        more.finish().exits(0);
        std::thread::sleep(quarter);
        keep(&folder.join("page.png"), &page.browser.picture());
    }
    assert_eq!(page.browser.problems(), [""; 0]);
    // The monitor is killed, and another one started.
    monitor.process.kill();
    page.eventually("document.getElementById('notice').innerText.includes('does not answer')");
    page.eventually("document.body.classList.contains('lost')");
    let _monitor = Monitor::start_with(&fixture, &configuration(&at));
    page.eventually("document.getElementById('notice').innerText.includes('has restarted')");
    page.eventually("!document.body.classList.contains('lost')");
    page.eventually("document.querySelectorAll('tbody tr').length === 2");
}

/// Saves a file that is given in base64.
fn keep(path: &Path, text: &str) {
    let mut command = Command::new("base64");
    command.arg("-d").stdin(Stdio::piped()).stdout(fs::File::create(path).expect("a file"));
    let mut decoder = command.spawn().expect("base64");
    let mut input = decoder.stdin.take().expect("its input");
    input.write_all(text.as_bytes()).expect("its input is read");
    drop(input);
    assert!(decoder.wait().expect("its end").success());
}

/// Marks as markup, and a right-to-left override.
const NAME: &str = "<img/src=x/onerror=hit=1>\u{202e}";

#[test]
fn hostile_names_are_text_on_the_page() {
    let (fixture, at) = (Fixture::new("A10:23028"), endpoint());
    let _monitor = Monitor::start_with(&fixture, &configuration(&at));
    let Some(mut page) = Page::open("hostile_names_are_text_on_the_page", &fixture, &at) else {
        return;
    };
    let container = fixture.limited("a", 1024);
    fs::write(container.file("limits"), format!("version 1\nname {NAME}\nweight 1\n"))
        .expect("limits");
    let mut inside = fixture.program_in(&container, "hold");
    inside.args(["64M", "200"]);
    let mut inside = Child::start(inside);
    inside.line();
    fs::write(container.file("refused"), "<img src=y onerror=hit=2>").expect("a message");
    // A process of the host, without the shim.
    let program = fixture.path("<img src=z>");
    fs::copy(fixture.dist().program("hold"), &program).expect("a program");
    let mut outside = fixture.native(&program);
    outside.args(["64M", "200"]);
    let mut outside = Child::start(outside);
    outside.line();
    let shown = "<img/src=x/onerror=hit=1>?";
    page.eventually(&format!(
        "document.querySelector('tbody tr td').innerText.includes('{shown}')"
    ));
    page.eventually("document.querySelector('#findings').textContent.includes('(<img src=z>)')");
    page.eventually("document.querySelector('#findings').innerText.includes('<img src=y')");
    assert!(page.text("#findings").contains("do: "), "{}", page.text("#findings"));
    assert_eq!(page.number("document.querySelectorAll('img').length"), 0);
    assert_eq!(page.browser.evaluate("typeof hit"), "undefined");
    // Markup that data would make could do nothing: the policy forbids it.
    page.browser.evaluate(
        "{ const made = document.createElement('script'); made.textContent = 'hit = 3'; \
         document.body.append(made); }",
    );
    assert_eq!(page.browser.evaluate("typeof hit"), "undefined");
    assert!(page.browser.problems().iter().any(|text| text.contains("Content Security Policy")));
    inside.finish().exits(0);
    outside.finish().exits(0);
}

/// The containers are copies of a real one, since the machine has no room for so many processes.
#[test]
fn page_shows_200_containers() {
    let (fixture, at) = (Fixture::new("A10:23028"), endpoint());
    let _monitor = Monitor::start_with(&fixture, &configuration(&at));
    let Some(mut page) = Page::open("page_shows_200_containers", &fixture, &at) else { return };
    let mut inside = fixture.program_in(&fixture.limited("one", 1024), "hold");
    inside.args(["64M", "200"]);
    let mut inside = Child::start(inside);
    inside.line();
    page.eventually("document.querySelectorAll('tbody tr').length === 1");
    page.browser.evaluate(
        "{
          const real = fetch;
          const many = (list, make) =>
            Array.from({ length: 200 }, (_, at) => make(structuredClone(list[0]), at));
          const uuid = (at) => 'GPU-' + at % 8;
          const rename = (one, at) => {
            Object.assign(one, { id: 'id' + at, name: 'container ' + at });
            Object.assign(one.gpus[0], { gpu: at % 8, uuid: uuid(at) });
            return one;
          };
          globalThis.fetch = async (path) => {
            const body = await (await real(path)).json();
            if (body.containers?.length > 0) {
              body.containers = many(body.containers, rename);
              body.gpus = Array.from({ length: 8 }, (_, at) =>
                Object.assign(structuredClone(body.gpus[0]), { index: at, uuid: uuid(at) }));
            }
            return { ok: true, json: async () => body };
          };
        }",
    );
    page.eventually("document.querySelectorAll('section.gpu').length === 8");
    page.eventually("document.querySelectorAll('tbody tr').length === 200");
    page.eventually("document.querySelectorAll('svg polygon').length >= 400");
    assert_eq!(page.browser.problems(), [""; 0]);
    assert_eq!(page.text("tbody tr td"), "container 0");
    inside.finish().exits(0);
}
