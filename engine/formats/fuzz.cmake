# Fuzz targets of the model readers (preset `fuzz`: clang, address and undefined-behaviour sanitizers). A run:
#   build-fuzz/engine/gguf_fuzz -max_total_time=60 build-fuzz/corpus engine/formats/fuzz_corpus/gguf
# New inputs go to the first folder. Seeds in fuzz_corpus/ are made by tools/make_fuzz_corpus.py.
target_compile_options(assay_engine PRIVATE -fsanitize=fuzzer-no-link)  # dumps/CMakeLists.txt does it for assay_dumps
foreach(name gguf hf_config)
  add_executable(${name}_fuzz formats/${name}_fuzz.cpp)
  target_link_libraries(${name}_fuzz PRIVATE assay_engine)
  target_compile_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
  target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
endforeach()
