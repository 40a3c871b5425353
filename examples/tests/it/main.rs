//! The example, as its author would test it.

use botmesh_testing::{CrashPoint, TestBot, TestUser, WritePoint, containing};

#[expect(dead_code, reason = "the example's `main` and its arguments")]
#[path = "../../appointments.rs"]
mod appointments;

use appointments::{Args, desk};
use clap::Parser;

async fn book_up_to_the_confirmation(ana: &TestUser) {
    ana.says("book").await;
    ana.expect_reply("What is your name?").await;
    ana.says("Ana").await;
    ana.expect_reply("Which day suits you, Monday to Friday?").await;
    ana.says("fri").await;
    ana.expect_reply("At what hour, from 9 to 17?").await;
    ana.says("10").await;
    ana.expect_reply("Ana on Friday at 10:00. Shall I book it?").await;
}

#[tokio::test]
async fn an_appointment_is_booked_listed_and_cancelled() {
    let bot = TestBot::new(desk);
    let ana = bot.user("ana");
    ana.says("hola").await;
    ana.expect_reply(containing("Write `book`")).await;
    book_up_to_the_confirmation(&ana).await;
    ana.presses("yes").await;
    ana.expect_reply("Booked: Ana on Friday at 10:00. Number 1 in your list.").await;
    ana.says("list").await;
    ana.expect_reply("1. Ana on Friday at 10:00").await;
    ana.says("cancel 1").await;
    ana.expect_reply("Cancelled: Ana on Friday at 10:00.").await;
    ana.expect_silence().await;
}

#[tokio::test]
async fn a_wrong_answer_is_asked_for_again() {
    let bot = TestBot::new(desk);
    let ana = bot.user("ana");
    ana.says("book").await;
    ana.expect_reply("What is your name?").await;
    ana.says("Ana").await;
    ana.expect_reply(containing("Which day")).await;
    ana.says("sunday").await;
    ana.expect_reply("We are open Monday to Friday. Try `Tuesday`.").await;
    ana.says("stop").await;
    ana.expect_reply("All right, nothing was booked.").await;
}

#[tokio::test]
async fn nothing_is_booked_twice_wherever_it_crashes() {
    let points = WritePoint::ALL.iter().map(|point| CrashPoint::from(*point));
    let mut crashes = 0;
    for point in points.chain([CrashPoint::Send]) {
        let bot = TestBot::new(desk);
        let ana = bot.user("ana");
        book_up_to_the_confirmation(&ana).await;
        bot.crash_after(point);
        ana.presses("yes").await;
        crashes += u32::from(bot.has_crashed());
        if bot.has_crashed() {
            bot.restart().await;
        }
        let before = bot.channel().texts_to("ana").len();
        ana.says("list").await;
        bot.advance("1m").await;
        let list = bot.channel().texts_to("ana").split_off(before);
        assert_eq!(list, ["1. Ana on Friday at 10:00"], "{point:?}\n{}", bot.transcript());
    }
    assert!(crashes >= 4, "only {crashes} of the points are reached");
}

/// Case G129: ids of groups begin with a minus.
#[test]
fn a_chat_may_be_called_as_a_group_of_telegram_is() {
    for arguments in [&["--chat", "-1001557912345"][..], &["--chat=-1001557912345"]] {
        let args = Args::try_parse_from([&["appointments"], arguments].concat()).unwrap();
        assert_eq!(args.chat, "-1001557912345");
    }
}
