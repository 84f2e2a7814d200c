/* SPDX-License-Identifier: Apache-2.0
 *
 * The two small documents beside the layout: topology and binding.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

#include "layouts/binding.h"
#include "layouts/topology.h"

static void refuses_topology(const char *text, const char *expected)
{
    struct refit_topology *topology = NULL;
    struct refit_error err;
    assert_int_equal(refit_topology_parse(text, strlen(text), "topology", &topology, &err), REFIT_INVALID);
    if (!strstr(err.text, expected))
        fail_msg("expected \"%s\" in: %s", expected, err.text);
}

static void a_topology_says_which_domain_each_rank_is_in(void **state)
{
    struct refit_topology *t;
    struct refit_error err;
    const char *text = "{\"format\":\"refit-topology/1\",\"ranks\":3,\"domains\":["
                       "{\"name\":\"b\",\"ranks\":[2,0]},{\"name\":\"a\",\"ranks\":[1]}]}";
    assert_int_equal(refit_topology_parse(text, strlen(text), "topology", &t, &err), REFIT_OK);
    assert_int_equal(refit_topology_ranks(t), 3);
    assert_int_equal(refit_topology_domains(t), 2);
    assert_string_equal(refit_topology_name(t, refit_topology_domain_of(t, 0)), "b");
    assert_string_equal(refit_topology_name(t, refit_topology_domain_of(t, 1)), "a");
    assert_string_equal(refit_topology_name(t, refit_topology_domain_of(t, 2)), "b");
    refit_topology_release(t);
}

static void one_domain_holds_all_ranks(void **state)
{
    struct refit_topology *t;
    json_t *document = refit_topology_of_one("host", 4);
    assert_int_equal(refit_topology_from_json(document, "topology", &t, NULL), REFIT_OK);
    assert_int_equal(refit_topology_domains(t), 1);
    assert_int_equal(refit_topology_ranks(t), 4);
    refit_topology_release(t);
    json_decref(document);
}

static void bad_topologies_are_refused_by_name(void **state)
{
    refuses_topology("{\"format\":\"refit-topology/2\",\"ranks\":1,\"domains\":[]}", "refit-topology/1");
    refuses_topology("{\"format\":\"refit-topology/1\",\"ranks\":2,\"domains\":[{\"name\":\"a\",\"ranks\":[0]}]}",
                     "rank 1 is in no domain");
    refuses_topology("{\"format\":\"refit-topology/1\",\"ranks\":1,\"domains\":[{\"name\":\"a\",\"ranks\":[0,0]}]}",
                     "rank 0 is in two domains");
    refuses_topology("{\"format\":\"refit-topology/1\",\"ranks\":1,\"domains\":[{\"name\":\"a\",\"ranks\":[1]}]}", "from 0 to 0");
    refuses_topology("{\"format\":\"refit-topology/1\",\"ranks\":1,\"domains\":[{\"name\":\"a\",\"ranks\":[\"0\"]}]}", "from 0 to 0");
    refuses_topology("{\"format\":\"refit-topology/1\",\"ranks\":1,\"domains\":[{\"name\":\"\",\"ranks\":[0]}]}", "1 to 63 bytes");
    refuses_topology("{\"format\":\"refit-topology/1\",\"ranks\":2,\"domains\":[{\"name\":\"a\",\"ranks\":[0]},"
                     "{\"name\":\"a\",\"ranks\":[1]}]}", "two domains are named");
    refuses_topology("{\"format\":\"refit-topology/1\",\"ranks\":0,\"domains\":[]}", "between 1");
    refuses_topology("{\"format\":\"refit-topology/1\",\"ranks\":1,\"domains\":[],\"x\":1}", "unknown member \"x\"");
}

static void a_binding_comes_back_as_it_was(void **state)
{
    struct refit_bound_rank ranks[2] = {
        {.process = "minilm", .pid = 12, .attached = true, .kind = "host", .bytes = 4096},
        {.process = "", .kind = "host", .bytes = UINT64_MAX}};
    struct refit_binding binding = {.layout = "abc", .ranks = 2, .rank = ranks}, back;
    struct refit_error err;
    json_t *document = refit_binding_to_json(&binding);
    assert_int_equal(refit_binding_from_json(document, "binding", &back, &err), REFIT_OK);
    assert_string_equal(back.layout, "abc");
    assert_int_equal(back.ranks, 2);
    assert_string_equal(back.rank[0].process, "minilm");
    assert_true(back.rank[0].attached && !back.rank[1].attached);
    assert_true(back.rank[1].bytes == UINT64_MAX);
    refit_binding_release(&back);

    json_object_set_new(json_array_get(json_object_get(document, "ranks"), 1), "rank", json_integer(0));
    assert_int_equal(refit_binding_from_json(document, "binding", &back, &err), REFIT_INVALID);
    assert_non_null(strstr(err.text, "\"rank\" must be between 1 and 1, found 0"));
    json_object_set_new(document, "format", json_string("refit-layout/1"));
    assert_int_equal(refit_binding_from_json(document, "binding", &back, &err), REFIT_INVALID);
    json_decref(document);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_topology_says_which_domain_each_rank_is_in),
        cmocka_unit_test(one_domain_holds_all_ranks),
        cmocka_unit_test(bad_topologies_are_refused_by_name),
        cmocka_unit_test(a_binding_comes_back_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
