//! What media a channel takes: checked before any of it is uploaded. The numbers are those of Meta's pages (Messenger: saving assets;
//! Instagram: attachment upload; WhatsApp: supported media types).

use botmesh_core::error::{ChannelError, ErrorClass, Phase};

/// One kind of media of one channel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// The channel, as people call it.
    pub(crate) channel: &'static str,
    /// What it calls the kind.
    pub(crate) kind: &'static str,
    /// The media types; one that ends in a slash stands for all that begin with it. Empty if it may be anything.
    pub(crate) types: &'static [&'static str],
    /// The largest file, in bytes.
    pub(crate) max: u64,
}

impl Limit {
    /// Whether the channel takes media of this type and size, as far as they are known.
    pub(crate) fn check(&self, mime: Option<&str>, bytes: Option<u64>) -> Result<(), ChannelError> {
        let essence = mime.map(|mime| mime.split(';').next().unwrap_or(mime).trim().to_ascii_lowercase());
        if let Some(mime) = essence.filter(|mime| !self.takes(mime)) {
            let (kind, types) = (self.kind, self.types.join(", ").replace("/,", "/*,"));
            let types = if types.ends_with('/') { types + "*" } else { types };
            let problem = format!(
                "{} takes no {kind} of type `{mime}`, only {types}: send it as one of these, and say its type in `mime` if \
                 the end of its name does not",
                self.channel
            );
            return Err(ChannelError::new(ErrorClass::UnsupportedContent, Phase::NotWritten, problem));
        }
        if let Some(bytes) = bytes.filter(|bytes| *bytes > self.max) {
            let Self { channel, kind, max, .. } = self;
            let problem = format!(
                "the {kind} has {bytes} bytes, and {channel} takes {max} at most: make it smaller, or send a link to it"
            );
            return Err(ChannelError::new(ErrorClass::PayloadTooLarge, Phase::NotWritten, problem));
        }
        Ok(())
    }

    fn takes(&self, mime: &str) -> bool {
        let is = |known: &&str| *known == mime || (known.ends_with('/') && mime.starts_with(known));
        self.types.is_empty() || self.types.iter().any(is)
    }
}
