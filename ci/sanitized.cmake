# The programs that ci/test and ci/sanitize run under AddressSanitizer and UndefinedBehaviorSanitizer, with the name of each and
# _sanitized behind it. Instrumented is what they judge: dumps/, engine/ and its kernels, the runtime of the emulated device and the
# .cu files of EMULATED. What judges (conformance/, oracle/, engine/text, the tests) is linked as this build has it already: most of
# the code, and not what these runs are for. The preset `sanitize` instruments every line, for ci/sanitize --all.
if(ASSAY_SANITIZE OR ASSAY_COVERAGE OR ASSAY_FUZZ OR CMAKE_CROSSCOMPILING OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  return()
endif()
set(EMULATED argmax attention attention_short embed gather heads kv_store module norm pack pointwise rope)
# The flags of preset `sanitize`; there is why null, vptr and object-size are not among them.
set(SANITIZERS -fsanitize=address,undefined -fno-sanitize=null,vptr,object-size)
set(INSTRUMENTED -UNDEBUG -g1 ${SANITIZERS} -fno-sanitize-recover=all -fno-omit-frame-pointer -Wno-error -Wno-subobject-linkage)   # false ones of GCC

# NAME: the files of the target FROM (those that match KEEP) with its definitions and folders, instrumented, and with OPTIONS.
function(instrumented name from keep)
  get_target_property(listed ${from} SOURCES)
  get_target_property(folder ${from} SOURCE_DIR)
  get_target_property(needed ${from} MANUALLY_ADDED_DEPENDENCIES)   # headers that the build makes
  list(FILTER listed EXCLUDE REGEX "TARGET_OBJECTS")
  list(FILTER listed INCLUDE REGEX "${keep}")
  set(files)
  foreach(file ${listed})
    get_filename_component(file ${file} ABSOLUTE BASE_DIR ${folder})
    list(APPEND files ${file})
  endforeach()
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${files})
  if(needed)
    add_dependencies(${name} ${needed})
  endif()
  target_compile_definitions(${name} PRIVATE $<TARGET_PROPERTY:${from},COMPILE_DEFINITIONS>)
  target_include_directories(${name} PRIVATE $<TARGET_PROPERTY:${from},INCLUDE_DIRECTORIES>)
  target_compile_options(${name} PRIVATE $<TARGET_PROPERTY:${from},COMPILE_OPTIONS> ${INSTRUMENTED} ${ARGN})
endfunction()

# NAME_sanitized: NAME, an executable, with the objects of the targets ARGN in place of what its libraries and itself hold of them:
# REPLACED matches the files of its own that are among these. They come first: of functions in headers the linker takes the first.
function(sanitized name libraries replaced)
  set(objects ${ARGN})
  list(TRANSFORM objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
  add_executable(${name}_sanitized EXCLUDE_FROM_ALL ${objects} "$<FILTER:$<TARGET_OBJECTS:${name}>,EXCLUDE,${replaced}>")
  target_link_libraries(${name}_sanitized PRIVATE ${libraries} Threads::Threads ${CMAKE_DL_LIBS})
  target_link_options(${name}_sanitized PRIVATE ${SANITIZERS})
  set_target_properties(${name}_sanitized PROPERTIES LINKER_LANGUAGE CXX RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
endfunction()

# Readers, writers and the engine. Few large files: at -O0 each one repeats what it takes of headers, which is most of it.
instrumented(dumps_instrumented assay_dumps "." -O0)
instrumented(engine_instrumented assay_engine "." -O0)
foreach(part dumps:24 engine:12)
  string(REPLACE ":" ";" part ${part})
  list(GET part 0 name)
  list(GET part 1 files)
  set_target_properties(${name}_instrumented PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${files})
  target_precompile_headers(${name}_instrumented PRIVATE <nlohmann/json.hpp> <fmt/format.h> <filesystem>)
endforeach()
set_source_files_properties(${PROJECT_SOURCE_DIR}/dumps/metrics_generic.cpp ${PROJECT_SOURCE_DIR}/dumps/metrics_avx2.cpp
                            PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

# Kernels, with unrolled loops that compile for minutes at -O3; those of AVX-512 are the same sources, and run as they are.
set(KERNELS_OF_CPU ops_instrumented)
instrumented(ops_instrumented assay_ops "." -O1)
foreach(isa scalar avx2 neon)
  if(TARGET ops_${isa})
    instrumented(ops_${isa}_instrumented ops_${isa} "." -O1)
    list(APPEND KERNELS_OF_CPU ops_${isa}_instrumented)
  endif()
endforeach()
foreach(isa avx512 avx512vnni)
  if(TARGET ops_${isa})
    list(APPEND KERNELS_OF_CPU ops_${isa})
  endif()
endforeach()

# The checks.
set(judges assay_conformance assay_text assay_oracle)
list(TRANSFORM judges REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE libraries)
sanitized(assay "${libraries};${PCRE2_LIBRARY};${UTF8PROC_LIBRARY}" "^$" dumps_instrumented engine_instrumented ${KERNELS_OF_CPU})
add_dependencies(assay_sanitized ${judges})

# The tests. That of the emulated memory expects the words of AddressSanitizer, so that these runs, too, are known to see anything.
if(TARGET dumps_tests)
  sanitized(dumps_tests GTest::gtest_main "^$" dumps_instrumented)
endif()
if(TARGET cuda_tests)
  list(JOIN EMULATED "|" kernels)
  instrumented(simt_kernels_instrumented simt_kernels "/(${kernels})\\.cpp$" -O1)
  instrumented(simt_runtime_instrumented simt_runtime "." -O1)
  instrumented(simt_tests_instrumented cuda_tests "simt_memory_test\\.cpp$" -O0)
  sanitized(cuda_tests GTest::gtest_main "/simt_memory_test\\." simt_runtime_instrumented simt_kernels_instrumented
            simt_tests_instrumented ${KERNELS_OF_CPU} simt_prim_check)
  target_sources(cuda_tests_sanitized PRIVATE "$<FILTER:$<TARGET_OBJECTS:simt_kernels>,EXCLUDE,/(${kernels})\\.cpp>")
endif()
