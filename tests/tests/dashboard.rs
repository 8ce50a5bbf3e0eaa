//! The dashboard as people use it, in Debian's Chromium. `./test.sh` runs these; by hand:
//! `cargo test -p tests --test dashboard -- --ignored`, with chromium-driver and chromium-headless-shell installed.
//! With ONEFOLD_PICTURES=FOLDER pictures are left there.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tests::browser::{Browser, Key};
use tests::daemon::{Daemon, onefold, program, text_of};
use tests::{own_address, wait_for};

const LIMIT: Duration = Duration::from_secs(60);
const DEFAULT: &str = "nqn.2026-11.dev.onefold:default";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-00000000d001";

/// A node with the dashboard.
struct Node {
    folder: tempfile::TempDir,
    address: String,
    daemon: Daemon,
}

impl Node {
    fn start(number: u8) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let address = own_address(number).to_string();
        let (listen, http) = (format!("tcp://{address}:4420"), format!("{address}:8420"));
        let serve = [
            "--create",
            "2G",
            "--listen",
            &listen,
            "--reactors",
            "1",
            "--http",
            &http,
        ];
        let daemon = Daemon::start(&folder.path().join("pool"), None, &serve);
        Self {
            folder,
            address,
            daemon,
        }
    }

    fn page(&self) -> String {
        format!("http://{}:8420/", self.address)
    }

    /// Runs a command of the program on the pool.
    fn run(&self, words: &[&str]) -> String {
        let pool = self.folder.path().join("pool");
        let output = onefold(&[words, &["--pool", pool.to_str().expect("text")]].concat());
        assert!(output.status.success(), "{words:?}: {}", text_of(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    fn token(&self, role: &str) -> String {
        self.run(&["token", "create", role, "--role", role])
            .trim()
            .to_owned()
    }

    /// A host that reads or writes namespace 1 of the default subsystem until it is killed.
    fn load(&self, pattern: &str) -> Child {
        let target = format!("tcp://{}:4420/{DEFAULT}", self.address);
        Command::new(program())
            .args(["perf", &target, "--nsid", "1", "--hostnqn", HOST])
            .args(["--rw", pattern, "--time", "3600"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a load")
    }

    /// A browser whose user has typed a token of that role.
    fn browser(&self, role: &str, width: u32) -> Browser {
        let token = self.token(role);
        let browser = Browser::start(width);
        browser.open(&self.page());
        browser.type_into("#token", &token);
        browser.click("#login button");
        browser.wait_for_text("#health", "ok");
        browser
    }
}

/// Leaves a picture where somebody asked for pictures.
fn picture(browser: &Browser, name: &str) {
    if let Some(folder) = std::env::var_os("ONEFOLD_PICTURES") {
        browser.picture(&Path::new(&folder).join(format!("{name}.png")));
    }
}

/// The lowest contrast of a text with what is behind it (WCAG 2.2, 1.4.3), and the text.
const CONTRAST: &str = r#"
const luminance = ([r, g, b]) => [r, g, b].map((it) => it / 255)
  .map((it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4))
  .reduce((sum, it, index) => sum + it * [0.2126, 0.7152, 0.0722][index], 0);
const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
const behind = (element) => {
  for (let it = element; it; it = it.parentElement) {
    const [r, g, b, a = 1] = parts(getComputedStyle(it).backgroundColor);
    if (a === 1) return [r, g, b];
  }
  return [255, 255, 255];
};
let worst = [99, ""];
for (const element of document.querySelectorAll("body *")) {
  // What lies over something lets it show through: half as opaque is half as far from it.
  let opacity = 1;
  for (let it = element; it; it = it.parentElement) opacity *= getComputedStyle(it).opacity;
  const own = [...element.childNodes].some((it) => it.nodeType === 3 && it.textContent.trim() !== "");
  if (!own || !element.checkVisibility() || element.closest(".skip, noscript, :disabled")) continue;
  const back = behind(element);
  const text = parts(getComputedStyle(element).color).slice(0, 3).map((it, index) => it * opacity + back[index] * (1 - opacity));
  const [light, dark] = [luminance(text), luminance(back)].sort((a, b) => b - a);
  const ratio = (light + 0.05) / (dark + 0.05);
  if (ratio < worst[0]) worst = [ratio, element.innerText];
}
return worst;
"#;

/// Pairs of the style's colours that lie upon each other, with the least contrast that WCAG 2.2 wants (1.4.3 for text,
/// 1.4.11 for borders of controls, the focus and lines of charts), and those that have less.
const COLOURS: &str = r#"
const luminance = (colour) => {
  const [, ...parts] = /^#(..)(..)(..)$/.exec(colour);
  return parts.map((it) => parseInt(it, 16) / 255)
    .map((it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4))
    .reduce((sum, it, index) => sum + it * [0.2126, 0.7152, 0.0722][index], 0);
};
const style = getComputedStyle(document.documentElement);
const of = (name) => luminance(style.getPropertyValue(`--${name}`).trim());
const pairs = [];
for (const back of ["panel", "page"]) {
  for (const text of ["text", "quiet", "good", "warn", "bad", "main"]) pairs.push([text, back, 4.5]);
  for (const line of ["quiet", "main", "read", "write", "stored", "dedup", "packed"]) pairs.push([line, back, 3]);
}
for (const state of ["good", "warn", "bad"]) pairs.push([state, `${state}-back`, 4.5]);
pairs.push(["on-main", "main", 4.5], ["panel", "bad", 4.5]);
return pairs.map(([one, other, least]) => {
  const [light, dark] = [of(one), of(other)].sort((a, b) => b - a);
  return [one, other, (light + 0.05) / (dark + 0.05), least];
}).filter(([, , ratio, least]) => !(ratio >= least)).map((it) => it.join(" "));
"#;

/// What surrounds or marks a control has a colour of the list above.
const BORDERS: &str = r##"
const probe = document.createElement("i");
document.body.append(probe);
const known = ["quiet", "main", "bad"].map((name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; });
probe.remove();
return [...document.querySelectorAll("button, input, select, .ranges label")]
  .filter((it) => it.checkVisibility() && !it.closest(".ranges") || it.matches(".ranges label"))
  .filter((it) => !known.includes(getComputedStyle(it).borderTopColor))
  .map((it) => `${it.id || it.outerHTML}: ${getComputedStyle(it).borderTopColor}`);
"##;

#[track_caller]
fn can_be_read(browser: &Browser) {
    let worst = browser.run(CONTRAST);
    let ratio = worst[0].as_f64().expect("a ratio");
    assert!((4.5..99.0).contains(&ratio), "{worst}");
    let beyond =
        browser.run("const it = document.documentElement; return it.scrollWidth - it.clientWidth");
    assert_eq!(beyond, 0, "nobody has to scroll sideways");
}

#[test]
#[ignore = "needs chromium: ./test.sh"]
fn who_has_a_token_sees_the_pool_and_what_happens_to_it() {
    let node = Node::start(1);
    let browser = Browser::start(1280);
    browser.open(&node.page());
    browser.type_into("#token", "onefold_wrong");
    browser.click("#login button");
    browser.wait_for_text("#refused", "there is no such token");
    assert!(
        !browser.text("#volumes").contains("vol0"),
        "nothing is shown"
    );
    // The refusal is what the browser complained of.
    assert_eq!(browser.complaints().len(), 2);

    browser.type_into("#token", &node.token("read"));
    browser.click("#login button");
    browser.wait_for_text("#volumes", "vol0");
    browser.wait_for_text("#hosts", "No host is attached.");
    browser.wait_for_text("#events", "HTTP is answered at");
    // What happens is shown when it happens.
    node.run(&["volume", "create", "second", "--size", "64M"]);
    browser.wait_for_text("#volumes", "second");
    browser.wait_for_text("#events", "added volume 'second'");
    let mut load = node.load("randrw");
    browser.wait_for_text("#hosts", "tcp");
    let written = "return document.querySelector('#throughput').getAttribute('aria-label') ?? ''";
    wait_for("a throughput", LIMIT, || {
        let told = browser.run(written);
        let told = told.as_str().expect("a text").to_owned();
        (told.contains("iB/s") && !told.contains("Written 0 B/s")).then_some(())
    });
    let slowest = "return [...document.querySelectorAll('#volumes td[data-head$=p99]')].map((it) => it.innerText).join(' ')";
    wait_for("a latency of the volume", LIMIT, || {
        let told = browser.run(slowest);
        let told = told.as_str().expect("a text");
        (told.matches("µs").count() + told.matches("ms").count() >= 2).then_some(())
    });
    picture(&browser, "light-load");
    can_be_read(&browser);
    load.kill().expect("it runs");
    load.wait().expect("it ends");

    // The token is in this tab, and nowhere else.
    browser.reload();
    browser.wait_for_text("#volumes", "second");
    assert_eq!(
        browser.run("return localStorage.length + document.cookie.length"),
        0
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
    browser.click("#leave");
    assert_eq!(browser.run("return sessionStorage.length"), 0);
    browser.wait_for_text("#login", "onefold token create");
    assert!(node.daemon.stop().success());
}

#[test]
#[ignore = "needs chromium: ./test.sh"]
fn an_administrator_makes_resizes_and_deletes_a_volume_and_is_told_what_is_lost() {
    let node = Node::start(4);
    let browser = node.browser("admin", 1280);
    browser.wait_for_text("#volumes", "vol0");
    browser.click("#create");
    browser.type_into("#field-name", "made");
    browser.type_into("#field-size", "much");
    browser.click("dialog button[type=submit]");
    browser.wait_for_text("dialog [role=alert]", "'much' is not a size");
    assert_eq!(
        browser.run("return (document.querySelector('#field-size').value = '')"),
        ""
    );
    browser.type_into("#field-size", "64M");
    browser.click("dialog button[type=submit]");
    browser.wait_for_text("#volumes", "made");
    let of = |act: &str| format!("[aria-label='{act} made']");
    browser.click(&of("Resize"));
    browser.type_into("#field-size", "128M");
    browser.click("dialog button[type=submit]");
    browser.wait_for_text("#volumes", "128 MiB");
    // Smaller: what is lost, and the volume's name typed first.
    browser.click(&of("Resize"));
    browser.type_into("#field-size", "4M");
    browser.click("dialog button[type=submit]");
    browser.wait_for_text(
        "dialog .lost",
        "Everything behind the first 4.00 MiB of made",
    );
    browser.click("dialog button[type=button]");
    browser.click(&of("Delete"));
    browser.wait_for_text("dialog .lost", "The volume made of 128 MiB");
    picture(&browser, "delete");
    let disabled = "return document.querySelector('dialog button[type=submit]').disabled";
    assert_eq!(browser.run(disabled), true);
    browser.type_into("#field-typed", "made");
    browser.click("dialog button[type=submit]");
    wait_for("the volume to go", LIMIT, || {
        (!browser.text("#volumes").contains("made")).then_some(())
    });
    let volumes = node.run(&["volume", "list", "--json"]);
    assert!(
        volumes.contains("vol0") && !volumes.contains("made"),
        "{volumes}"
    );
    browser.wait_for_text("#tasks", "delete of made");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    assert!(node.daemon.stop().success());
}

/// What has the keyboard's focus, as a screen reader calls it.
fn focused(browser: &Browser) -> String {
    let name =
        browser.run("const it = document.activeElement; return it.ariaLabel ?? it.innerText");
    name.as_str().unwrap_or_default().to_owned()
}

#[test]
#[ignore = "needs chromium: ./test.sh"]
fn a_volume_is_detached_by_the_keyboard_after_its_hosts_are_named() {
    let node = Node::start(6);
    let other = "nqn.2026-11.org.example:other";
    node.run(&["subsystem", "create", other]);
    node.run(&["namespace", "attach", other, "vol0"]);
    let mut load = node.load("randread");
    let browser = node.browser("admin", 1280);
    browser.wait_for_text("#hosts", HOST);
    for width in [390, 700, 820, 1000, 1280] {
        browser.resize(width, 1000);
        can_be_read(&browser);
    }
    let _ = browser.run("document.querySelector('[aria-label=\"Detach vol0\"]').focus()");
    browser.press(Key::Enter);
    browser.wait_for_text("dialog", "Go on");
    let _ = browser.run(&format!(
        "document.querySelector('#field-subsystem').value = '{DEFAULT}'"
    ));
    browser.click("dialog button[type=submit]");
    browser.wait_for_text("dialog .affected", HOST);
    picture(&browser, "detach");
    can_be_read(&browser);
    // Nothing happens to who turns back, and the keyboard is where it was.
    browser.press(Key::Escape);
    wait_for("the dialog to close", LIMIT, || {
        browser.text("dialog").is_empty().then_some(())
    });
    assert!(node.run(&["subsystem", "show", DEFAULT]).contains("vol0"));
    browser.click("[aria-label=\"Detach vol0\"]");
    browser.wait_for_text("dialog", "Go on");
    browser.click("dialog button[type=submit]");
    browser.wait_for_text("dialog .affected", HOST);
    // Who presses Enter without a look turns back.
    assert_eq!(focused(&browser), "Cancel");
    browser.press(Key::Tab);
    assert_eq!(focused(&browser), "Detach");
    browser.press(Key::Enter);
    wait_for("the namespace to go", LIMIT, || {
        let places = browser.text("#volumes");
        (places.contains(other) && !places.contains(DEFAULT)).then_some(())
    });
    // Of the last place it is asked for at once, and no host is there.
    browser.click("[aria-label=\"Detach vol0\"]");
    browser.wait_for_text("dialog .affected", "No host that sees it there is attached");
    browser.click("dialog button[type=submit]");
    browser.wait_for_text("#volumes", "attached nowhere");
    browser.click("[aria-label=\"Detach vol0\"]");
    browser.wait_for_text("dialog", "No subsystem shows it.");
    browser.press(Key::Escape);
    browser.click("[aria-label=\"Attach vol0\"]");
    browser.click("dialog button[type=submit]");
    browser.wait_for_text("#volumes", "(1)");
    load.kill().expect("it runs, and tries again");
    load.wait().expect("it ends");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    assert!(node.daemon.stop().success());
}

#[test]
#[ignore = "needs chromium: ./test.sh"]
fn a_volume_is_renamed_after_what_names_it_is_told() {
    let node = Node::start(7);
    node.run(&["volume", "create", "other", "--size", "64M"]);
    let browser = node.browser("admin", 390);
    browser.wait_for_text("#volumes", "other");
    browser.click("[aria-label=\"Rename vol0\"]");
    browser.wait_for_text("dialog .affected", "A configuration file that names vol0");
    picture(&browser, "rename");
    can_be_read(&browser);
    // The old name is selected: what is typed takes its place.
    browser.type_text("other");
    browser.click("dialog button[type=submit]");
    browser.wait_for_text("dialog [role=alert]", "another volume has that name");
    let _ = browser.run("document.querySelector('#field-name').select()");
    browser.type_into("#field-name", "mail");
    browser.press(Key::Enter);
    browser.wait_for_text("#volumes", "mail");
    assert!(!browser.text("#volumes").contains("vol0"));
    // The button that was used is still there, and has the new name.
    wait_for("the focus", LIMIT, || {
        (focused(&browser) == "Rename mail").then_some(())
    });
    let volumes = node.run(&["volume", "list", "--json"]);
    assert!(
        volumes.contains("mail") && !volumes.contains("vol0"),
        "{volumes}"
    );
    assert!(node.daemon.stop().success());
}

#[test]
#[ignore = "needs chromium: ./test.sh"]
fn who_may_only_look_is_offered_no_changes() {
    let node = Node::start(5);
    let browser = node.browser("read", 1280);
    browser.wait_for_text("#volumes", "vol0");
    let offered = "return [...document.querySelectorAll('main button')].filter((it) => it.checkVisibility()).length";
    assert_eq!(browser.run(offered), 0);
    assert!(node.daemon.stop().success());
}

#[test]
#[ignore = "needs chromium: ./test.sh"]
fn it_can_be_read_on_a_phone_and_in_the_dark_and_used_without_a_mouse() {
    let node = Node::start(2);
    let browser = node.browser("read", 390);
    browser.wait_for_text("#volumes", "vol0");
    picture(&browser, "phone");
    can_be_read(&browser);
    browser.click("#theme");
    browser.wait_for_text("#theme", "Light");
    picture(&browser, "phone-dark");
    can_be_read(&browser);
    browser.resize(1280, 1000);
    picture(&browser, "dark");
    can_be_read(&browser);
    // Tab goes through everything that can be used, and shows where it is.
    let mut met = Vec::new();
    for _ in 0..8 {
        browser.press(Key::Tab);
        let at = browser.run(
            "const it = document.activeElement; \
             return [it.id || it.className || it.tagName, getComputedStyle(it).outlineStyle]",
        );
        // Behind the last one the page begins anew.
        assert!(at[1] != "none" || at[0] == "BODY", "{at}");
        met.push(at[0].as_str().expect("a name").to_owned());
    }
    for wanted in ["skip", "theme", "leave"] {
        assert!(met.iter().any(|name| name == wanted), "{met:?}");
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
    assert!(node.daemon.stop().success());
}

/// What the legends of the charts say, a frame after everything was drawn.
fn legends(browser: &Browser) -> Vec<String> {
    let told = browser.run(
        "return new Promise((later) => requestAnimationFrame(() => requestAnimationFrame(() => later( \
           [...document.querySelectorAll('.u-legend')].map((it) => it.innerText.replaceAll('\\n', ' '))))))",
    );
    let told = told.as_array().expect("a list").iter();
    told.map(|it| it.as_str().expect("a text").to_owned())
        .collect()
}

/// Whether each chart but that of latencies, which an idle node has not, says its last moment.
fn are_told(legends: &[String]) -> bool {
    let told = |it: &&String| {
        !it.contains("--") && !it.contains('–') && it.contains(|c: char| c.is_ascii_digit())
    };
    legends.iter().filter(told).count() >= 3
}

#[test]
#[ignore = "needs chromium: ./test.sh"]
fn the_legends_of_charts_stay_when_colours_or_the_width_change() {
    let node = Node::start(8);
    let browser = node.browser("read", 1280);
    wait_for("the first figures", LIMIT, || {
        are_told(&legends(&browser)).then_some(())
    });
    for colours in ["Light", "Dark"] {
        browser.click("#theme");
        browser.wait_for_text("#theme", colours);
        let told = legends(&browser);
        assert!(are_told(&told), "{told:#?}");
    }
    for width in [390, 1280] {
        browser.resize(width, 1000);
        let told = legends(&browser);
        assert!(are_told(&told), "{width}: {told:#?}");
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
    assert!(node.daemon.stop().success());
}

#[test]
#[ignore = "needs chromium: ./test.sh"]
fn snapshots_and_exports_are_shown_with_their_volumes() {
    let node = Node::start(9);
    let browser = node.browser("read", 1280);
    browser.wait_for_text("#snapshots", "There is no snapshot.");
    browser.wait_for_text("#exports", "No volume is exported.");
    node.run(&["snapshot", "create", "vol0@monday"]);
    browser.wait_for_text("#snapshots", "monday");
    browser.wait_for_text("#snapshots", "vol0");
    browser.wait_for_text("#snapshots-note", "onefold status --survey");
    node.run(&["status", "--survey"]);
    node.run(&["snapshot", "create", "vol0@tuesday"]);
    browser.wait_for_text("#snapshots tbody", "0 B");
    let first = "return document.querySelector('#snapshots tbody td').innerText";
    wait_for("the latest one first", LIMIT, || {
        (browser.run(first) == "tuesday").then_some(())
    });
    let socket = node.folder.path().join("vm.sock");
    let socket = socket.to_str().expect("text");
    node.run(&["export", "create", "vol0@monday", "--vhost", socket]);
    browser.wait_for_text("#exports", socket);
    for word in ["vol0@monday", "vhost", "waiting", "no front-end"] {
        browser.wait_for_text("#exports", word);
    }
    let place = format!("unix:{}", node.folder.path().join("vm.nbd").display());
    node.run(&["export", "create", "vol0", "--nbd", &place]);
    for word in [&*place, "no client is connected"] {
        browser.wait_for_text("#exports", word);
    }
    picture(&browser, "snapshots");
    for width in [390, 700, 820, 1000, 1280] {
        browser.resize(width, 1000);
        can_be_read(&browser);
    }
    browser.click("#theme");
    picture(&browser, "snapshots-dark");
    can_be_read(&browser);
    browser.resize(390, 1000);
    picture(&browser, "snapshots-phone");
    // A front-end that comes is seen.
    let stream = std::os::unix::net::UnixStream::connect(socket).expect("it listens");
    browser.wait_for_text("#exports", "in use");
    drop(stream);
    node.run(&["snapshot", "delete", "vol0@tuesday", "--yes"]);
    wait_for("it to go", LIMIT, || {
        (!browser.text("#snapshots").contains("tuesday")).then_some(())
    });
    assert_eq!(browser.complaints(), Vec::<String>::new());
    assert!(node.daemon.stop().success());
}

#[test]
#[ignore = "needs chromium: ./test.sh"]
fn own_and_shared_space_of_each_volume_is_counted_when_somebody_asks() {
    let node = Node::start(10);
    let image = node.folder.path().join("image");
    let content: Vec<u8> = (0..(1_u32 << 20))
        .map(|at| (at / 4096 * 7 + at % 251) as u8)
        .collect();
    std::fs::write(&image, content).expect("an image");
    let image = image.to_str().expect("text");
    node.run(&["volume", "import", "golden", image]);
    let browser = node.browser("operate", 1280);
    let cell = |volume: &str, head: &str| {
        let told = browser.run(&format!(
            "return [...document.querySelectorAll('#volumes tbody tr')] \
               .find((it) => it.innerText.startsWith('{volume}'))?.querySelector('[data-head={head}]').innerText"
        ));
        told.as_str().unwrap_or_default().to_owned()
    };
    // The daemon counts now and then by itself: that may have been before the volume was there.
    browser.wait_for_text("#survey-note", "counted");
    browser.click("#survey");
    browser.wait_for_text("#tasks", "survey");
    let counted = || Some(cell("golden", "Own")).filter(|own| own.ends_with("iB"));
    let own = wait_for("the first count", LIMIT, counted);
    browser.wait_for_text("#survey-note", "counted just now");
    assert_eq!(cell("golden", "Shared"), "0 B");
    // What two volumes have is nobody's own.
    node.run(&["volume", "clone", "golden", "copy"]);
    browser.wait_for_text("#volumes", "copy");
    browser.click("#survey");
    wait_for("the second count", LIMIT, || {
        (cell("copy", "Shared") == own).then_some(())
    });
    assert_eq!(cell("golden", "Own"), "0 B");
    assert_eq!(cell("golden", "Shared"), own);
    picture(&browser, "survey");
    can_be_read(&browser);
    assert_eq!(browser.complaints(), Vec::<String>::new());
    assert!(node.daemon.stop().success());
}

#[test]
#[ignore = "needs chromium: ./test.sh"]
fn who_was_refused_last_is_shown_with_the_reason() {
    let node = Node::start(11);
    let closed = "nqn.2026-11.org.example:closed";
    node.run(&[
        "subsystem",
        "create",
        closed,
        "--host",
        "nqn.2014-08.org.example:known",
    ]);
    let target = format!("tcp://{}:4420/{closed}", node.address);
    let stranger = onefold(&[
        "perf",
        &target,
        "--nsid",
        "1",
        "--hostnqn",
        HOST,
        "--rw",
        "read",
        "--time",
        "1",
    ]);
    let told = text_of(&stranger);
    assert!(told.contains("Connect Invalid Host"), "{told}");
    let browser = node.browser("read", 1280);
    // What happened before somebody looked, and what happens now.
    browser.wait_for_text("#turned-last", HOST);
    browser.wait_for_text("#turned-last", "Connect was refused");
    browser.wait_for_text("#turned-last", "127.");
    let rows = "return document.querySelectorAll('#turned-last tbody tr').length";
    assert_eq!(browser.run(rows), 1);
    let http = format!("http://{}:8420/v1/volumes", node.address);
    let curl = [
        "-s",
        "-o",
        "/dev/null",
        "-H",
        "Authorization: Bearer onefold_wrong",
        &http,
    ];
    let asked = Command::new("curl").args(curl).status().expect("curl runs");
    assert!(asked.success(), "it is answered");
    browser.wait_for_text("#turned-last", "a request used a token");
    assert_eq!(browser.run(rows), 2);
    picture(&browser, "refused");
    can_be_read(&browser);
    browser.resize(390, 1000);
    can_be_read(&browser);
    assert_eq!(browser.complaints(), Vec::<String>::new());
    assert!(node.daemon.stop().success());
}

#[test]
#[ignore = "needs chromium: ./test.sh"]
fn the_last_scrub_is_known_after_a_restart_and_drives_have_a_state() {
    let node = Node::start(12);
    let browser = node.browser("read", 1280);
    browser.wait_for_text("#scrub", "No scrub has run yet. None begins by itself.");
    browser.wait_for_text("#drives", "works");
    node.run(&["scrub", "start"]);
    browser.wait_for_text("#scrub", "The last scrub ended");
    browser.wait_for_text("#scrub", "found 0 damaged blocks");
    node.run(&["scrub", "schedule", "--every-days", "30"]);
    let Node {
        folder,
        address,
        daemon,
    } = node;
    assert!(daemon.stop().success());
    // What is shown is old now. That is said, and it can be read as well as before.
    browser.wait_for_text("#notice", "does not answer");
    picture(&browser, "stale");
    can_be_read(&browser);
    let (listen, http) = (format!("tcp://{address}:4420"), format!("{address}:8420"));
    let serve = ["--listen", &listen, "--reactors", "1", "--http", &http];
    let pool = folder.path().join("pool");
    let daemon = Daemon::start(&pool, None, &serve);
    browser.reload();
    browser.wait_for_text("#scrub", "The last scrub ended");
    browser.wait_for_text("#scrub", "One begins every 30 days.");
    let told = onefold(&["scrub", "status", "--pool", pool.to_str().expect("text")]);
    let told = text_of(&told);
    assert!(
        !told.contains("No scrub") && told.contains("finished at"),
        "{told}"
    );
    assert!(daemon.stop().success());
}

#[test]
#[ignore = "needs chromium: ./test.sh"]
fn colours_of_texts_controls_and_charts_differ_enough_from_what_is_behind_them() {
    let node = Node::start(13);
    let browser = node.browser("admin", 1280);
    browser.wait_for_text("#volumes", "vol0");
    for _ in ["one scheme", "the other"] {
        assert_eq!(browser.run(COLOURS), serde_json::json!([]));
        assert_eq!(browser.run(BORDERS), serde_json::json!([]));
        browser.click("#theme");
    }
    browser.click("#create");
    browser.wait_for_text("dialog", "Size");
    assert_eq!(browser.run(BORDERS), serde_json::json!([]));
    can_be_read(&browser);
    assert!(node.daemon.stop().success());
}

#[test]
#[ignore = "needs chromium: ./test.sh"]
fn a_page_of_another_site_gets_no_answer_even_with_a_token() {
    let node = Node::start(3);
    let token = node.token("admin");
    let browser = Browser::start(800);
    browser.open("data:text/html,<title>other</title><body></body>");
    let asked = browser.run(&format!(
        "return fetch('{}v1/status', {{headers: {{Authorization: 'Bearer {token}'}}}}) \
           .then(() => 'answered', () => 'refused')",
        node.page()
    ));
    assert_eq!(asked, "refused");
    assert!(node.daemon.stop().success());
}
