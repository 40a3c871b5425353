//! What the server answered.

use botmesh_core::Bytes;
use botmesh_core::error::StoreError;
use fred::types::Resp3Frame;

use crate::error::{Access, answered, unexpected};

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    frame: Resp3Frame,
    moved: bool,
}

impl Reply {
    pub(crate) fn new(frame: Resp3Frame) -> Self {
        Self { frame, moved: false }
    }

    /// An answer of another node of a Cluster than the one that was asked first, if it is so.
    pub(crate) fn moved(self, moved: bool) -> Self {
        Self { moved: self.moved || moved, ..self }
    }

    pub(crate) fn is_moved(&self) -> bool {
        self.moved
    }

    pub(crate) fn error(&self) -> Option<&str> {
        match &self.frame {
            Resp3Frame::SimpleError { data, .. } => Some(data),
            Resp3Frame::BlobError { data, .. } => Some(std::str::from_utf8(data).unwrap_or("not a text")),
            _ => None,
        }
    }

    pub(crate) fn is_unknown_script(&self) -> bool {
        self.error().is_some_and(|error| error.starts_with("NOSCRIPT"))
    }

    /// The answer, or the error that it is.
    pub(crate) fn ok(self, operation: &'static str, place: &str, access: Access) -> Result<Self, StoreError> {
        match self.error() {
            Some(error) => Err(answered(operation, place, access, error)),
            None => Ok(self),
        }
    }

    /// A text or a number; `None` for no value.
    pub(crate) fn bytes(self) -> Result<Option<Bytes>, Unexpected> {
        match self.frame {
            Resp3Frame::BlobString { data, .. }
            | Resp3Frame::SimpleString { data, .. }
            | Resp3Frame::VerbatimString { data, .. } => Ok(Some(data)),
            Resp3Frame::Number { data, .. } => Ok(Some(data.to_string().into())),
            Resp3Frame::Null => Ok(None),
            _ => Err(Unexpected::new("something else where a text is due")),
        }
    }

    /// A text.
    pub(crate) fn text(self) -> Result<Bytes, Unexpected> {
        self.bytes()?.ok_or_else(|| Unexpected::new("nothing where a text is due"))
    }

    /// A list. A map is the list of its keys and values.
    pub(crate) fn list(self) -> Result<Vec<Reply>, Unexpected> {
        match self.frame {
            Resp3Frame::Array { data, .. } => Ok(data.into_iter().map(Self::new).collect()),
            Resp3Frame::Map { data, .. } => {
                Ok(data.into_iter().flat_map(|(key, value)| [Self::new(key), Self::new(value)]).collect())
            }
            _ => Err(Unexpected::new("something else where a list is due")),
        }
    }

    /// A list of texts, none of which is missing.
    pub(crate) fn texts(self) -> Result<Vec<Bytes>, Unexpected> {
        let text = |frame| Self::new(frame).text();
        match self.frame {
            Resp3Frame::Array { data, .. } => data.into_iter().map(text).collect(),
            _ => self.list()?.into_iter().map(|reply| text(reply.frame)).collect(),
        }
    }
}

/// The answer has another form than it must have.
#[derive(Debug)]
pub(crate) struct Unexpected(String);

impl Unexpected {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    pub(crate) fn error(self, operation: &'static str, place: &str, access: Access) -> StoreError {
        unexpected(operation, place, access, &format!("the server answered {}", self.0))
    }
}
