# One helper per kind of target, so that every module is built alike.
include_guard(GLOBAL)

# Warnings are errors in CI (REFIT_WERROR), not for packagers.
add_library(refit_flags INTERFACE)
target_compile_options(refit_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes
  -Wvla -Wformat=2 -Wcast-qual -Wwrite-strings -Wundef -Wnull-dereference -Wimplicit-fallthrough
  $<$<BOOL:${REFIT_WERROR}>:-Werror>)
target_compile_definitions(refit_flags INTERFACE _GNU_SOURCE)
target_include_directories(refit_flags INTERFACE ${PROJECT_SOURCE_DIR})
if(REFIT_SANITIZE)
  target_compile_options(refit_flags INTERFACE -fsanitize=${REFIT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(refit_flags INTERFACE -fsanitize=${REFIT_SANITIZE})
endif()

if(REFIT_FUZZ)
  target_compile_options(refit_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# refit_watch_reports(TEST ...): what a sanitizer says in a child process fails the test, too.
function(refit_watch_reports)
  if(REFIT_SANITIZE)
    set_tests_properties(${ARGN} PROPERTIES
      FAIL_REGULAR_EXPRESSION "ERROR: [A-Z][a-zA-Z]*Sanitizer;WARNING: ThreadSanitizer;runtime error:")
  endif()
endfunction()

# refit_module(NAME SOURCES a.c b.c LINK refit_base ...)
# A directory is a module is a target: refit_NAME, position independent, symbols hidden.
function(refit_module name)
  cmake_parse_arguments(M "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  add_library(refit_${name} STATIC ${M_SOURCES})
  set_target_properties(refit_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/include)
    target_include_directories(refit_${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/include)
  endif()
  target_link_libraries(refit_${name} PUBLIC ${M_LINK} PRIVATE refit_flags ${M_PRIVATE_LINK})
endfunction()

# refit_library(NAME REQUIRES pkg ...)
# Module NAME as the shared library librefit-NAME that others link: its symbols are those of NAME/NAME.map.
# Installs it with the module's headers, refit-NAME.pc and the CMake target refit::NAME (component `sdk`).
function(refit_library name)
  cmake_parse_arguments(L "" "" "REQUIRES" ${ARGN})
  set(target refit_${name}_shared)
  set(map ${CMAKE_CURRENT_SOURCE_DIR}/${name}.map)
  # Objects, not archives: an archive's members that nothing inside calls would be left out.
  add_library(${target} SHARED $<TARGET_OBJECTS:refit_${name}> $<TARGET_OBJECTS:refit_base>)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME refit-${name} EXPORT_NAME ${name} VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${map} LINKER_LANGUAGE C)
  target_link_libraries(${target} PRIVATE refit_${name} refit_flags)
  target_link_options(${target} PRIVATE LINKER:--version-script=${map} LINKER:--no-undefined-version)
  target_include_directories(${target} INTERFACE
    $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/base/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  list(JOIN L_REQUIRES " " REFIT_PC_REQUIRES)
  set(REFIT_PC_NAME refit-${name})
  # From where the file lies: `cmake --install --prefix` may put the tree elsewhere than it was configured for.
  file(RELATIVE_PATH REFIT_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/refit.pc.in refit-${name}.pc @ONLY)
  install(TARGETS ${target} EXPORT refit LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT sdk NAMELINK_COMPONENT sdk)
  install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT sdk)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/refit-${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
    COMPONENT sdk)
endfunction()

# refit_program(NAME SOURCES ... LINK ... [INSTALL])
function(refit_program name)
  cmake_parse_arguments(P "INSTALL" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${P_SOURCES})
  target_link_libraries(${name} PRIVATE ${P_LINK} refit_flags)
  if(P_INSTALL)
    install(TARGETS ${name} RUNTIME)
  endif()
endfunction()

# CMocka's test function signatures leave `state` unused. Linked last: the last of -W and -Wno- wins.
add_library(refit_test_flags INTERFACE)
target_compile_options(refit_test_flags INTERFACE -Wno-unused-parameter)

# refit_test(MODULE SUBJECT [SOURCES extra.c] [LINK ...] [TIMEOUT s] [LABELS ...] [SERIAL])
# One CMocka program per subject: tests/MODULE/test_SUBJECT.c.
function(refit_test module subject)
  cmake_parse_arguments(T "SERIAL" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT REFIT_TESTS)
    return()
  endif()
  set(target test_${module}_${subject})
  add_executable(${target} test_${subject}.c ${T_SOURCES})
  target_link_libraries(${target} PRIVATE refit_${module} ${T_LINK} PkgConfig::CMOCKA refit_flags refit_test_flags)
  add_test(NAME ${module}/${subject} COMMAND ${target})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  if(REFIT_SANITIZE)
    math(EXPR T_TIMEOUT "${T_TIMEOUT} * 4")
  endif()
  set_tests_properties(${module}/${subject} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${module};${T_LABELS}")
  refit_watch_reports(${module}/${subject})
  if(T_SERIAL)
    set_tests_properties(${module}/${subject} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# refit_gpu_test(NAME [ENVIRONMENT ...] COMMAND ...)
# What also runs over the driver that a machine has, look-alike or real: `gpu/NAME`, only of the configuration `gpu`
# (scripts/test-gpu.sh). What turns on the look-alike's switches skips itself there.
function(refit_gpu_test name)
  cmake_parse_arguments(G "" "" "ENVIRONMENT;COMMAND" ${ARGN})
  add_test(NAME gpu/${name} CONFIGURATIONS gpu COMMAND ${G_COMMAND})
  set_tests_properties(gpu/${name} PROPERTIES TIMEOUT 600 LABELS gpu RUN_SERIAL ON ENVIRONMENT "${G_ENVIRONMENT}")
endfunction()

# refit_fuzz(MODULE SUBJECT [LINK ...])
# tests/MODULE/fuzz_SUBJECT.c defines LLVMFuzzerTestOneInput. Every build replays corpus/SUBJECT/ in ctest; with
# REFIT_FUZZ (clang) the libFuzzer program fuzz_MODULE_SUBJECT is built too, and starts from the same corpus.
function(refit_fuzz module subject)
  cmake_parse_arguments(F "" "" "LINK" ${ARGN})
  set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${subject})
  set(replay replay_${module}_${subject})
  add_executable(${replay} fuzz_${subject}.c ${PROJECT_SOURCE_DIR}/tests/support/fuzz_replay.c)
  target_link_libraries(${replay} PRIVATE refit_${module} ${F_LINK} refit_flags)
  add_test(NAME ${module}/fuzz_${subject} COMMAND ${replay} ${corpus})
  set_tests_properties(${module}/fuzz_${subject} PROPERTIES TIMEOUT 60 LABELS "${module};fuzz")
  if(REFIT_FUZZ)
    set(target fuzz_${module}_${subject})
    add_executable(${target} fuzz_${subject}.c)
    target_link_libraries(${target} PRIVATE refit_${module} ${F_LINK} refit_flags -fsanitize=fuzzer)
    file(COPY ${corpus}/ DESTINATION ${CMAKE_BINARY_DIR}/corpus/${target})
  endif()
endfunction()
