rule quantizer_error:
    input:
        unpack(FLOW.inputs("quantizer_error")),
    output:
        f"{RESULTS}/cells/{{study}}/{{model}}/{{arm}}/{{group}}.jsonl",
    log:
        f"logs/{RUN}/quantizer_error/{{study}}/{{model}}/{{arm}}/{{group}}.log",
    wildcard_constraints:
        study="quantizer_error",
    priority: 0
    conda:
        "../../environment.yml"
    threads: FLOW.threads
    resources:
        mem_mb=FLOW.memory("quantizer_error"),
        gpu=FLOW.gpus(),
    params:
        spec=FLOW.specs("quantizer_error"),
        code=FLOW.codes("quantizer_error"),
        named=FLOW.named_inputs("quantizer_error"),
    shell:
        "kvatlas cell --spec {params.spec:q} --code {params.code} --threads {threads} --input {params.named:q} --output {output} > {log} 2>&1"
