//! What Graph says when it refuses a call, and what that means.

use std::time::Duration;

use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use serde_json::{Map, Value};

use crate::lenient::{is_set, text};
use crate::secret::Secret;

/// How long to wait where Meta does not say.
pub(super) const LIMITED: Duration = Duration::from_secs(60);

/// How long to wait when an app has used up its hour, which passes minute by minute: calls in vain count as well.
const APP_LIMITED: Duration = Duration::from_secs(5 * 60);

/// Too many messages from a number to one user of WhatsApp. Every other limit is that of the number, the account or the app.
const PAIR: i64 = 131_056;

/// Whose codes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    WhatsApp,
    /// Messenger and Instagram.
    Page,
}

/// The error of an answer, or of a status that came later.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: i64,
    subcode: i64,
    message: String,
    transient: bool,
}

impl Refusal {
    /// Reads `{"error": {…}}`.
    pub(crate) fn of_answer(body: &[u8]) -> Option<Self> {
        Self::of(serde_json::from_slice::<Value>(body).ok()?.get("error")?)
    }

    /// Reads an error.
    pub(crate) fn of(error: &Value) -> Option<Self> {
        let number = |key| error.get(key).and_then(Value::as_i64);
        let message = text(error, "message").or_else(|| text(error, "title")).unwrap_or("no message");
        let details = error.get("error_data").and_then(|data| text(data, "details"));
        let message = match details {
            Some(details) if details != message => format!("{message}: {details}"),
            _ => message.to_owned(),
        };
        let subcode = number("error_subcode").unwrap_or(0);
        Some(Self { code: number("code")?, subcode, message, transient: is_set(error, "is_transient") })
    }

    /// `131047`, or `10/2018278`.
    pub(crate) fn code(&self) -> String {
        match self.subcode {
            0 => self.code.to_string(),
            subcode => format!("{}/{subcode}", self.code),
        }
    }

    /// Takes a secret out of what Graph says: it repeats a token that it cannot read.
    pub(crate) fn scrub(&mut self, secret: &Secret) {
        self.message = secret.scrub(&self.message);
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn class(&self, product: Product, status: u16) -> ErrorClass {
        let class = match product {
            Product::WhatsApp => of_whatsapp(self.code, &self.message),
            Product::Page => of_page(self.code, self.subcode, &self.message),
        };
        match class {
            Some(class) => class,
            None if self.transient => ErrorClass::Transient,
            None => of_status(status),
        }
    }

    pub(crate) fn into_error(self, product: Product, status: u16, headers: &HeaderMap) -> ChannelError {
        let class = self.class(product, status);
        let error = ChannelError::new(class, Phase::Answered, self.message.clone()).with_code(self.code());
        if class != ErrorClass::RateLimited {
            return error;
        }
        let of_pair = product == Product::WhatsApp && self.code == PAIR;
        let usual = match self.code {
            // Meta asks for four seconds at first.
            PAIR => Duration::from_secs(4),
            // Too many in a second.
            130_429 | 613 => Duration::from_secs(1),
            _ => LIMITED,
        };
        let error = error.with_retry_after(wait(headers).unwrap_or(usual));
        if of_pair { error } else { error.for_all_chats() }
    }
}

fn of_whatsapp(code: i64, message: &str) -> Option<ErrorClass> {
    Some(match code {
        0 | 3 | 10 | 190 | 200..=299 => ErrorClass::Auth,
        4 | 80_007 | 130_429 | 131_048 | PAIR | 131_064 | 133_016 => ErrorClass::RateLimited,
        131_047 | 470 => ErrorClass::OutsideSessionWindow,
        131_021 | 131_026 | 131_030 => ErrorClass::RecipientUnreachable,
        131_051..=131_053 | 131_062 | 132_000..=132_069 => ErrorClass::UnsupportedContent,
        100 if is_about_length(message) => ErrorClass::PayloadTooLarge,
        100 | 131_008 | 131_009 => ErrorClass::Rejected,
        1 | 2 | 131_000 | 131_016 | 131_057 | 133_004 | 135_000 => ErrorClass::Transient,
        // The account is blocked: nothing can be sent until somebody acts.
        368 | 130_497 | 131_031 | 131_042 | 131_044 | 131_045 | 137_000 => ErrorClass::Auth,
        130_472 | 131_049 | 131_050 | 131_063 => ErrorClass::Rejected,
        _ => return None,
    })
}

fn of_page(code: i64, subcode: i64, message: &str) -> Option<ErrorClass> {
    Some(match (code, subcode) {
        (10, 2_018_065 | 2_018_278 | 2_534_022) => ErrorClass::OutsideSessionWindow,
        // Another application has the thread.
        (10, 2_018_300) => ErrorClass::Rejected,
        (551, _) | (100, 2_018_001 | 2_534_014) | (200, _) => ErrorClass::RecipientUnreachable,
        (4 | 17 | 32 | 613 | 80_006, _) => ErrorClass::RateLimited,
        (10 | 102 | 190 | 368, _) => ErrorClass::Auth,
        (1 | 2 | 1200, _) => ErrorClass::Transient,
        (100, _) if is_about_length(message) => ErrorClass::PayloadTooLarge,
        (100, _) => ErrorClass::Rejected,
        _ => return None,
    })
}

fn is_about_length(message: &str) -> bool {
    let message = message.to_lowercase();
    message.contains("length") || message.contains("too long")
}

pub(crate) fn of_status(status: u16) -> ErrorClass {
    match status {
        401 => ErrorClass::Auth,
        413 => ErrorClass::PayloadTooLarge,
        429 => ErrorClass::RateLimited,
        500.. => ErrorClass::Transient,
        _ => ErrorClass::Rejected,
    }
}

/// How long Meta asks to wait: in a header of HTTP's own, or in minutes in one of Meta's.
pub(crate) fn wait(headers: &HeaderMap) -> Option<Duration> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    if let Some(seconds) = header(RETRY_AFTER.as_str()).and_then(|wait| wait.trim().parse().ok()) {
        return Some(Duration::from_secs(seconds));
    }
    let usage = |name| serde_json::from_str::<Value>(header(name)?).ok();
    let (of_business, of_app) = (usage("x-business-use-case-usage"), usage("x-app-usage"));
    let accounts = of_business.as_ref().and_then(Value::as_object).into_iter().flat_map(Map::values);
    let limits = accounts.filter_map(Value::as_array).flatten().chain(&of_app);
    let minutes = limits.filter_map(|limit| limit.get("estimated_time_to_regain_access")?.as_u64()).max();
    if let Some(minutes) = minutes.filter(|minutes| *minutes > 0) {
        return Some(Duration::from_secs(minutes.saturating_mul(60)));
    }
    of_app.is_some_and(|usage| is_used_up(&usage)).then_some(APP_LIMITED)
}

/// Whether one of the percentages that an app is held to is reached.
fn is_used_up(usage: &Value) -> bool {
    let percent = |key| usage.get(key).and_then(Value::as_f64).unwrap_or(0.0);
    ["call_count", "total_time", "total_cputime"].into_iter().any(|key| percent(key) >= 100.0)
}
