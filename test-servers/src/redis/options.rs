//! How a server is started.

/// What a server writes to its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing: it starts empty each time.
    #[default]
    None,
    /// Each write, made durable once a second (`appendfsync everysec`).
    EverySecond,
    /// Each write, made durable before it is answered (`appendfsync always`).
    Always,
}

/// How to start a server. The defaults: nothing on disk, no limit of memory, no password.
#[derive(Clone, Debug, Default)]
pub struct Options {
    persistence: Persistence,
    password: Option<String>,
    user: Option<(String, String)>,
    settings: Vec<(String, String)>,
    is_sentinel: bool,
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// What it writes to its files. Default: [`Persistence::None`].
    #[must_use]
    pub fn with_persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = persistence;
        self
    }

    /// The memory that data may take, in bytes, and what happens beyond, such as `noeviction` or `allkeys-lru`.
    /// Default: no limit.
    #[must_use]
    pub fn with_max_memory(self, bytes: u64, policy: &str) -> Self {
        self.with_setting("maxmemory", &bytes.to_string()).with_setting("maxmemory-policy", policy)
    }

    /// The password of the user `default`. Default: none.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self
    }

    /// A user with a password and the rights of `rules`, such as `~botmesh:* &* +@all -@dangerous`.
    /// [`url`](crate::Redis::url) then has this user, while the calls of this crate keep all rights.
    #[must_use]
    pub fn with_user(mut self, name: &str, password: &str, rules: &str) -> Self {
        self.user = Some((name.into(), password.into()));
        let credentials = quoted(&format!(">{password}"));
        self.with_setting("user", &format!("{name} on {credentials} {rules}"))
    }

    /// A line of its configuration file, such as `rename-command` with `CONFIG ""`.
    #[must_use]
    pub fn with_setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    pub(super) fn owner_password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    pub(super) fn url(&self, port: u16) -> String {
        let credentials = match (&self.user, &self.password) {
            (Some((name, password)), _) => format!("{}:{}@", encoded(name), encoded(password)),
            (None, Some(password)) => format!(":{}@", encoded(password)),
            (None, None) => String::new(),
        };
        format!("redis://{credentials}127.0.0.1:{port}")
    }

    /// As the settings of a sentinel that watches such a server. It has no password itself.
    pub(crate) fn sentinel(&self, service: &str, master: u16, quorum: usize) -> Self {
        let own = |name: &str, value: &str| (format!("sentinel {name}"), format!("{service} {value}"));
        let mut settings = vec![
            own("monitor", &format!("127.0.0.1 {master} {quorum}")),
            own("down-after-milliseconds", "1000"),
            own("failover-timeout", "3000"),
        ];
        settings.extend(self.password.as_deref().map(|password| own("auth-pass", &quoted(password))));
        Self { settings, is_sentinel: true, ..Self::new() }
    }

    pub(super) fn is_sentinel(&self) -> bool {
        self.is_sentinel
    }

    pub(super) fn config(&self, port: u16) -> String {
        let append = match self.persistence {
            Persistence::None => "appendonly no\n",
            Persistence::EverySecond => "appendonly yes\nappendfsync everysec\n",
            Persistence::Always => "appendonly yes\nappendfsync always\n",
        };
        let mut text = format!("bind 127.0.0.1\nport {port}\ndaemonize no\n");
        if !self.is_sentinel {
            // A replica gets its copy at once, not after 5 s in which others might ask for one too.
            text += &format!("save \"\"\n{append}repl-diskless-sync-delay 0\n");
        }
        if let Some(password) = &self.password {
            // A replica needs it for its master too.
            let password = quoted(password);
            text += &format!("requirepass {password}\nmasterauth {password}\n");
        }
        for (name, value) in &self.settings {
            text += &format!("{name} {value}\n");
        }
        text
    }
}

/// As one word of a configuration file.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', r#"\""#))
}

/// With everything but letters and digits in the form that a URL takes it.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(byte).collect()
}
