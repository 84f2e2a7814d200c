/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"
#include "engine/attach.h"

struct pair {
    int sock[2];
};

static int open_pair(void **state)
{
    struct pair *pair = calloc(1, sizeof *pair);
    *state = pair;
    return pair ? socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair->sock) : -1;
}

static int close_pair(void **state)
{
    struct pair *pair = *state;
    refit_io_close(&pair->sock[0]);
    refit_io_close(&pair->sock[1]);
    free(pair);
    return 0;
}

static struct refit_attach_message round_trip(struct pair *pair, struct refit_attach_message sent)
{
    struct refit_attach_message got;
    size_t count = 9;
    int fds[1];
    assert_int_equal(refit_attach_send(pair->sock[0], &sent, NULL, 0, NULL), REFIT_OK);
    assert_int_equal(refit_attach_receive(pair->sock[1], &got, fds, 1, &count, NULL), REFIT_OK);
    assert_int_equal(count, 0);
    assert_int_equal(got.type, sent.type);
    return got;
}

static void every_message_comes_back_as_it_was_sent(void **state)
{
    const struct refit_version version = {.version = UINT64_MAX, .label = "r\"1\"", .digest = "ab"};
    struct refit_attach_message m = round_trip(*state, (struct refit_attach_message){
        .type = REFIT_ATTACH_ATTACH, .abi = 1, .rank = 3, .ranks = 4, .label = "vllm", .returning = true});
    assert_true(m.rank == 3 && m.ranks == 4 && m.returning && strcmp(m.label, "vllm") == 0);
    m = round_trip(*state, (struct refit_attach_message){
        .type = REFIT_ATTACH_ATTACHED, .abi = 1, .slots = 16, .bytes = UINT64_MAX});
    assert_true(m.slots == 16 && m.bytes == UINT64_MAX);
    m = round_trip(*state, (struct refit_attach_message){
        .type = REFIT_ATTACH_REFUSED, .status = REFIT_MISMATCH, .text = "why"});
    assert_true(m.status == REFIT_MISMATCH && strcmp(m.text, "why") == 0);
    m = round_trip(*state, (struct refit_attach_message){
        .type = REFIT_ATTACH_PREPARE, .refit = "12", .slot = 1, .version = version});
    assert_true(m.slot == 1 && m.version.version == UINT64_MAX && strcmp(m.version.label, "r\"1\"") == 0);
    m = round_trip(*state, (struct refit_attach_message){
        .type = REFIT_ATTACH_PREPARED, .refit = "12", .ok = false, .text = "no memory"});
    assert_true(!m.ok && strcmp(m.refit, "12") == 0 && strcmp(m.text, "no memory") == 0);
    m = round_trip(*state, (struct refit_attach_message){
        .type = REFIT_ATTACH_SWAPPING, .refit = "12", .version = version, .kv = "keep"});
    assert_string_equal(m.kv, "keep");
    round_trip(*state, (struct refit_attach_message){.type = REFIT_ATTACH_READY, .refit = "12", .ok = true});
    round_trip(*state, (struct refit_attach_message){.type = REFIT_ATTACH_SWAPPED, .version = version, .kv = "flush"});
    round_trip(*state, (struct refit_attach_message){.type = REFIT_ATTACH_SLOT, .slot = 2});
    round_trip(*state, (struct refit_attach_message){.type = REFIT_ATTACH_DETACH});
}

static void slots_on_a_device_are_named(void **state)
{
    struct refit_attach_message sent = {.type = REFIT_ATTACH_ATTACHED, .abi = 1, .slots = 3, .bytes = 9,
                                        .device = {.slots = 5, .granularity = 2 << 20}};
    memset(sent.device.uuid, 0xAB, sizeof sent.device.uuid);
    memset(sent.device.id[0], 1, REFIT_SLOT_ID_BYTES);
    memset(sent.device.id[2], 3, REFIT_SLOT_ID_BYTES);
    struct refit_attach_message m = round_trip(*state, sent);
    assert_memory_equal(&m.device, &sent.device, sizeof m.device);
    sent = (struct refit_attach_message){.type = REFIT_ATTACH_SLOT, .slot = 2, .device = {.slots = 5}};
    memset(sent.device.id[2], 7, REFIT_SLOT_ID_BYTES);
    m = round_trip(*state, sent);
    assert_int_equal(m.device.slots, 4);
    assert_memory_equal(m.device.id[2], sent.device.id[2], REFIT_SLOT_ID_BYTES);
    sent.slot = 1; /* that one is a memfd */
    assert_int_equal(round_trip(*state, sent).device.slots, 0);
}

static void text_that_is_not_utf8_is_sent_as_question_marks(void **state)
{
    struct refit_attach_message m = round_trip(*state, (struct refit_attach_message){
        .type = REFIT_ATTACH_PREPARED, .refit = "1", .text = "bad \xff byte"});
    assert_string_equal(m.text, "bad ? byte");
}

static void an_empty_socket_is_busy_and_a_closed_one_is_a_lost_peer(void **state)
{
    struct pair *pair = *state;
    struct refit_attach_message m;
    size_t count;
    int fds[1];
    assert_int_equal(refit_attach_receive(pair->sock[1], &m, fds, 1, &count, NULL), REFIT_BUSY);
    refit_io_close(&pair->sock[0]);
    assert_int_equal(refit_attach_receive(pair->sock[1], &m, fds, 1, &count, NULL), REFIT_PEER);
}

#define ID "000102030405060708090a0b0c0d0e0f"
#define ATTACHED(device) "{\"type\":\"attached\",\"abi\":1,\"slots\":2,\"bytes\":1,\"device\":" device "}"

static void what_is_no_message_is_refused(void **state)
{
    static const char *const garbage[] = {
        "x", "{}", "[]", "\"attach\"", "{\"type\":7}", "{\"type\":\"none\"}", "{\"type\":\"attach\"}",
        "{\"type\":\"slot\",\"slot\":-1}", "{\"type\":\"slot\",\"slot\":4294967296}",
        "{\"type\":\"slot\",\"slot\":1.5}",
        "{\"type\":\"slot\",\"slot\":1,\"id\":\"12\"}",
        "{\"type\":\"slot\",\"slot\":1,\"id\":7}",
        ATTACHED("7"), ATTACHED("{}"), ATTACHED("{\"uuid\":\"zz\",\"granularity\":1,\"slots\":[]}"),
        ATTACHED("{\"uuid\":\"" ID "\",\"granularity\":-1,\"slots\":[\"\",\"\"]}"),
        ATTACHED("{\"uuid\":\"" ID "\",\"granularity\":1,\"slots\":[\"\"]}"),
        ATTACHED("{\"uuid\":\"" ID "\",\"granularity\":1,\"slots\":[\"\",\"12\"]}"),
        "{\"type\":\"attached\",\"abi\":1,\"slots\":99,\"bytes\":1,\"device\":{\"uuid\":\"" ID
        "\",\"granularity\":1,\"slots\":[]}}",
        "{\"type\":\"ready\",\"refit\":\"1\",\"ok\":1,\"text\":\"\"}",
        "{\"type\":\"refused\",\"status\":99,\"text\":\"\"}",
        "{\"type\":\"prepare\",\"refit\":\"1\",\"slot\":0,\"version\":0,\"label\":\"\",\"digest\":\"\"}",
        "{\"type\":\"swapped\",\"kv\":\"a word that is too long\",\"version\":1,\"label\":\"\",\"digest\":\"\"}",
    };
    struct pair *pair = *state;
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        struct refit_attach_message m;
        struct refit_error error = {0};
        size_t count;
        int fds[1];
        assert_int_equal(send(pair->sock[0], garbage[i], strlen(garbage[i]), 0), strlen(garbage[i]));
        assert_int_equal(refit_attach_receive(pair->sock[1], &m, fds, 1, &count, &error), REFIT_INVALID);
        assert_true(error.text[0] != '\0');
    }
}

static void descriptors_beside_garbage_are_closed(void **state)
{
    struct pair *pair = *state;
    struct refit_attach_message m;
    size_t count;
    int fds[1], ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(refit_io_send_fds(pair->sock[0], "x", 1, &ends[1], 1, NULL), REFIT_OK);
    close(ends[1]);
    assert_int_equal(refit_attach_receive(pair->sock[1], &m, fds, 1, &count, NULL), REFIT_INVALID);
    assert_int_equal(read(ends[0], &byte, 1), 0); /* nobody holds the other end any more */
    close(ends[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_message_comes_back_as_it_was_sent, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(slots_on_a_device_are_named, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(text_that_is_not_utf8_is_sent_as_question_marks, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(an_empty_socket_is_busy_and_a_closed_one_is_a_lost_peer, open_pair,
                                        close_pair),
        cmocka_unit_test_setup_teardown(what_is_no_message_is_refused, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(descriptors_beside_garbage_are_closed, open_pair, close_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
