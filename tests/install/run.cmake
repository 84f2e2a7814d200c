# Installs the libraries into an empty directory, builds the consumer against it, runs its programs.
# Needs BUILD, SOURCE, WORK, LIBDIR, COMPILER, FLAGS.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE rc OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT rc EQUAL 0)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "${line}: ${rc}\n${out}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
set(prefix ${WORK}/prefix)
set(libdir ${prefix}/${LIBDIR})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix} --component sdk)

# Nothing but the API is visible.
foreach(library engine sender)
  run(nm -D --defined-only ${libdir}/librefit-${library}.so)
  string(REPLACE "\n" ";" lines "${out}")
  foreach(line IN LISTS lines)
    if(line MATCHES " [A-Z] ([^ @]+)" AND NOT CMAKE_MATCH_1 MATCHES "^(refit_${library}_|refit_status_|refit_outcome_name|refit_fleet_outcome_|REFIT_)")
      message(FATAL_ERROR "librefit-${library}.so shows ${CMAKE_MATCH_1}")
    endif()
  endforeach()
endforeach()

# Manual pages and completions lie where man and the shells look.
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix} --component manual)
foreach(file man/man1/refit.1 man/man8/refitd.8 bash-completion/completions/refit zsh/site-functions/_refit
        fish/vendor_completions.d/refit.fish)
  if(NOT EXISTS ${prefix}/share/${file})
    message(FATAL_ERROR "not installed: share/${file}")
  endif()
endforeach()

# The tree was configured for another prefix: what is installed finds itself.
set(ENV{PKG_CONFIG_PATH} ${libdir}/pkgconfig:$ENV{PKG_CONFIG_PATH})
run(${CMAKE_COMMAND} -S ${SOURCE}/consumer -B ${WORK}/build -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_C_COMPILER=${COMPILER}
  -DCONSUMER_LIBDIR=${libdir} -DCONSUMER_FLAGS=${FLAGS})
run(${CMAKE_COMMAND} --build ${WORK}/build)
foreach(library engine sender)
  foreach(way by_target by_pkgconfig)
    run(${WORK}/build/${way}_${library})
    message(STATUS "${way}_${library}: ${out}")
  endforeach()
endforeach()
file(REMOVE_RECURSE ${WORK})
