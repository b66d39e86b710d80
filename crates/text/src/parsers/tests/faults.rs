//! Broken calls: what the parser makes of them does not depend on the cuts.

use super::*;

/// The text goes on after the closing tag that follows the fault, not after one that stands in a string before it.
#[test]
fn broken_calls_end_at_the_next_tag() {
    check(
        &hermes(),
        &[
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{\"</tool_call>\":x</tool_call>z",
                "z",
                &[("f", "{}")],
            ),
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call>\\x\"}}</tool_call>z",
                "z",
                &[("f", "{\"a\":\"</tool_call>\"}")],
            ),
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{},\"</tool_call>\\x\":1}</tool_call>z",
                "z",
                &[("f", "{}")],
            ),
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{},\"a\":\"</tool_call>\\x\"}</tool_call>z",
                "z",
                &[("f", "{}")],
            ),
        ],
    );
}

/// A string may hold the object; anything else is no call.
#[test]
fn arguments_are_an_object_or_no_call() {
    let refused = [
        "\"a\"",
        "\"[1]\"",
        "\"null\"",
        "\"{\\\"x\\\":\"",
        "5",
        "true",
        "[]",
        "[{}]",
        "\"\"",
    ];
    for value in refused {
        for call in [
            format!("<tool_call>{{\"name\":\"f\",\"arguments\":{value}}}</tool_call>"),
            format!("<tool_call>{{\"arguments\":{value},\"name\":\"f\"}}</tool_call>"),
            format!("<tool_call>{{\"name\":\"f\",\"parameters\":{value}"),
        ] {
            check(&hermes(), &[(&call, &call, &[])]);
            let next = format!("{call}<tool_call>{{\"name\":\"g\"}}</tool_call>");
            check(&hermes(), &[(&next, &call, &[("g", "{}")])]);
        }
    }
    check(
        &hermes(),
        &[
            (
                "<tool_call>{\"arguments\":\"{\\\"x\\\": [1]}\",\"name\":\"f\"}</tool_call>",
                "",
                &[("f", "{\"x\": [1]}")],
            ),
            (
                "<tool_call>{\"arguments\":null,\"name\":\"f\"}</tool_call>",
                "",
                &[("f", "{}")],
            ),
            // A fault before the arguments: no call. Cut off there: a call.
            (
                "<tool_call>{\"name\":\"f\" x}</tool_call>",
                "<tool_call>{\"name\":\"f\" x}</tool_call>",
                &[],
            ),
            ("<tool_call>{\"name\":\"f\",\"id\":\"a", "", &[("f", "{}")]),
        ],
    );
}

/// Garbage that fuzzing found, each in pieces of three letters once parsed otherwise than whole.
#[test]
fn fuzzed_garbage() {
    for (thinks, text) in GARBAGE {
        let style = ParserStyle {
            reasoning: thinks.then_some(ReasoningStyle::Think),
            tools: Some(ToolStyle::Hermes),
        };
        for inside in [false, true] {
            let case = Case {
                style,
                tools: None,
                inside,
            };
            case.parse(text);
        }
        let tools = Some(ToolStyle::Qwen3Coder);
        let case = Case {
            style: ParserStyle { tools, ..style },
            tools: Some(p16_tools()),
            inside: false,
        };
        case.parse(text);
    }
}

const GARBAGE: [(bool, &str); 5] = [
    (
        false,
        "Su{\"na</parameter>0e9\"\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 65535</tool_call>\u{fffd}Vb\": [true, n\u{3}Su{\"na</parameter>0e9\"\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a2: 65535</tool_call>\u{fffd}Vb\"2ull, \"x]n\\u00e9\"]}}\n</al",
    ),
    (
        true,
        "Su{\" a</<tool_call>parameter>0e9\"\n<tool_call>\n{\"name\": \"a\u{8}\u{fffd}\", \"arguments\": {\"</tool_call>ll>\n{\"name\": \"add\", \"arguments\"a\": 65535</tool_call>\u{fffd}ool_cadl>\u{fffd}Vb\": [tru<function=e, n\u{3}Su{\"na</parameter>0e9\"\n<too922337203685477\u{15}807l_>ter=a>\n12\n</parameter>\n<pa31rameter=text>\nline\narame\u{1f600}a>\n12\n|/p\"aramete\\u\n<p\\uBketer=text\u{fffd}ter>0e9\"\n<ext\u{fffd}4er>0e9\n<</function>/parameter>\n<pa31rameter=text>\nlinef</think>>l\u{fffd}>e\n<nct\u{fffd}\u{fffd}\u{fffd}\u{7f}\ncaame\": \"add\", \"arguments\": {\"a\": 1, \"b\": [true, nul\u{0}a,\u{1f600}a>\n12\n</pa</line\nline4294967296\n</parameter>\n</fun_tion>\n</tooJ_call>arameternef</th>eter>\n<parar>\n<parameter=text><param<function=\nline\n</parameter>\n</funcaramraneter>\n</function>\n<\u{fffd}tool_line\nline\n</par]ame4er>\u{e}</funct\u{fffd}\u{fffd}\u{fffd}\u{e}</funct\u{fffd}!\u{0}\u{0}\u{0}line\n</parameter>\u{e};/\"",
    ),
    (
        false,
        "Su{\"na</parameter>0e9\"\n<tool}_call>\n{\"name\": \"add\", \"arguments\": {\"a\"8 65535</tool_call>\u{fffd}Vb\": [urue, n\u{3}S\u{fffd}{\"na</parameter>0e9\"\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\u{e}: 65535</tool_call>\u{fffd}Vb\"2u, \"argtments\": {\"ll, \"x]n\\u00e9\"{\u{2}name\": \"",
    ),
    (
        false,
        "Su{\"na</parameter>0e9\"\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"\u{fffd}\u{0}\u{0}\u{0}65535</tool_call>\u{fffd}Vb\": [true, n\u{3}Su{\"na</parameter>0e9\"\n<tool_call>\n{\"name\": \"add\", \"argument<function=s\":2\n</parameter>\n<r>\n</fgti!n=aparameter=ter>\n<\u{fffd}arameter=text>\nline\nline\n</parame2147483647ter>\u{e}</funct\u{fffd}\u{fffd}\u{fffd}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}{l@phink>_call>_call>\nete a tag, <fue a tag,n\\u00e9\"]}}\n</al",
    ),
    (
        false,
        "Su{\"na</parameter>0e9\"\n<tool_call>\n{\"name\": \"a*d\", \"argumenss\": {\"a#: 65535</tool_call>\u{fffd}ool_call?\u{fffd}Vb\": [true, n\u{3}Su{\"na\", \"argumentVb\": [true, n\u{3}Su{\"na</parameter>0e9\"\n<tool_ca256ll>\n{\"name\": \"add\", \"arguments\": {\"a\": 65535</tool_call>\u{fffd}Vb\"2ull, \"x]n\\u00e9\"]</parameter>0e9\"\n<tool_call>\n{\"name\": \"add\"\u{fffd} \"argumentVb\": [true, n\u{3}Su{\"na</parameter>0e9\"\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 65535</tool_call>\u{fffd}Vb\"2ull, \"x]n\\u00e9\"]}\n</al",
    ),
];
