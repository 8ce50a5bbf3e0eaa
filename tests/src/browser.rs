//! A browser without a window: Debian's Chromium, driven by chromedriver (W3C WebDriver).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::wait_for;

/// How long the browser may take for what it is told.
const LIMIT: Duration = Duration::from_secs(60);

/// A key that people use a page by without a mouse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// To the next thing that can be used.
    Tab,
    /// Uses it.
    Enter,
    /// Leaves a dialog.
    Escape,
}

/// A tab of a browser of its own, which ends when this is dropped.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts one with an empty tab of this width.
    ///
    /// # Panics
    /// When `chromium-driver` or `chromium-headless-shell` is not installed.
    #[must_use]
    pub fn start(width: u32) -> Self {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts: install chromium-driver and chromium-headless-shell");
        let mut browser = Self {
            driver,
            port,
            session: String::new(),
        };
        wait_for("chromedriver", LIMIT, || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
        });
        // Without a sandbox of its own, because tests run as root; what it loads is ours.
        let arguments = [
            "--no-sandbox",
            "--disable-gpu",
            "--force-device-scale-factor=1",
        ];
        // The program itself: a script of the package stands before it, which would die alone and leave it running.
        let options =
            json!({"binary": "/usr/lib/chromium/chromium-headless-shell", "args": arguments});
        let wanted = json!({
            "browserName": "chrome-headless-shell",
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": options,
            // Chromedriver waits for elements that the page is about to make (WebDriver, 'implicit wait').
            "timeouts": {"implicit": LIMIT.as_millis() as u64 / 2},
        });
        let started = browser.ask(
            "POST",
            "/session",
            &json!({"capabilities": {"alwaysMatch": wanted}}),
        );
        browser.session = started["sessionId"].as_str().expect("a session").to_owned();
        browser.resize(width, 1000);
        browser
    }

    /// A request to chromedriver; gives the value of its answer.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream =
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("chromedriver");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        let body = match method {
            "POST" => body.to_string(),
            _ => String::new(),
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).expect("sent");
        let mut answer = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            answer.read_line(&mut line).expect("a head");
            let line = line.trim().to_ascii_lowercase();
            if let Some(text) = line.strip_prefix("content-length:") {
                length = text.trim().parse().expect("a number");
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body).expect("a body");
        let mut answer: Value = serde_json::from_slice(&body).expect("JSON");
        let value = answer["value"].take();
        assert!(value["error"].is_null(), "{method} {path}: {value:#}");
        value
    }

    fn tell(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("/session/{}{path}", self.session), body)
    }

    /// Makes the window this large.
    pub fn resize(&self, width: u32, height: u32) {
        self.tell("/window/rect", &json!({"width": width, "height": height}));
    }

    /// Opens an address, and waits until it is loaded.
    pub fn open(&self, address: &str) {
        self.tell("/url", &json!({"url": address}));
    }

    /// Loads the page again.
    pub fn reload(&self) {
        self.tell("/refresh", &json!({}));
    }

    /// What the body of a function gives in the page.
    #[must_use]
    pub fn run(&self, script: &str) -> Value {
        self.tell("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// The element that a selector of CSS finds.
    fn find(&self, selector: &str) -> String {
        let found = self.tell(
            "/element",
            &json!({"using": "css selector", "value": selector}),
        );
        let mut values = found.as_object().expect("an element").values();
        let id = values.next().and_then(Value::as_str);
        id.expect("an identifier").to_owned()
    }

    /// Clicks on an element, as a person does: it has to be seen.
    pub fn click(&self, selector: &str) {
        let element = self.find(selector);
        self.tell(&format!("/element/{element}/click"), &json!({}));
    }

    /// Types into an element.
    pub fn type_into(&self, selector: &str, text: &str) {
        let element = self.find(selector);
        self.tell(&format!("/element/{element}/value"), &json!({"text": text}));
    }

    /// Presses a key.
    pub fn press(&self, key: Key) {
        // As WebDriver names them (17.4.2, keyboard actions).
        self.type_text(match key {
            Key::Tab => "\u{e004}",
            Key::Enter => "\u{e007}",
            Key::Escape => "\u{e00c}",
        });
    }

    /// Types where the keyboard's focus is.
    pub fn type_text(&self, text: &str) {
        let key = |kind, value| json!({"type": kind, "value": value});
        let chars = text.chars();
        let presses = chars.flat_map(|char| [key("keyDown", char), key("keyUp", char)]);
        let presses: Vec<Value> = presses.collect();
        let keys = json!([{"type": "key", "id": "keys", "actions": presses}]);
        self.tell("/actions", &json!({"actions": keys}));
    }

    /// The text that a person sees in an element.
    #[must_use]
    pub fn text(&self, selector: &str) -> String {
        let script = format!("return document.querySelector('{selector}')?.innerText ?? ''");
        self.run(&script).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an element has that text.
    ///
    /// # Panics
    /// When it does not get it.
    pub fn wait_for_text(&self, selector: &str, text: &str) {
        wait_for(&format!("'{text}' in {selector}"), LIMIT, || {
            self.text(selector).contains(text).then_some(())
        });
    }

    /// What the browser complained of since the last time: errors of scripts and of the page's policy.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let log = self.tell("/se/log", &json!({"type": "browser"}));
        let lines = log.as_array().expect("a log").iter();
        let lines = lines.map(|line| line["message"].as_str().unwrap_or_default().to_owned());
        lines.collect()
    }

    /// Writes a picture of the whole page into a file.
    pub fn picture(&self, file: &Path) {
        let size = self
            .run("const it = document.documentElement; return [it.clientWidth, it.scrollHeight]");
        let number =
            |index: usize| u32::try_from(size[index].as_u64().unwrap_or(1000)).unwrap_or(1000);
        self.resize(number(0), number(1));
        let path = format!("/session/{}/screenshot", self.session);
        let text = self.ask("GET", &path, &Value::Null);
        let mut decoder = Command::new("base64")
            .arg("-d")
            .stdin(Stdio::piped())
            .stdout(std::fs::File::create(file).expect("a file"))
            .spawn()
            .expect("base64 starts");
        let mut stdin = decoder.stdin.take().expect("a pipe");
        stdin
            .write_all(text.as_str().expect("a picture").as_bytes())
            .expect("sent");
        drop(stdin);
        assert!(decoder.wait().expect("it ends").success());
        self.resize(number(0), 1000);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !std::thread::panicking() && !self.session.is_empty() {
            self.ask(
                "DELETE",
                &format!("/session/{}", self.session),
                &Value::Null,
            );
        }
        // It ends its browsers when it is told to end.
        let pid = rustix::process::Pid::from_child(&self.driver);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.driver.wait();
    }
}
