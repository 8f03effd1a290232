rule fetch_model:
    output:
        "resources/models/{model}/provenance.json",
    log:
        "logs/fetch_model/{model}.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=4000,
    params:
        entry=FLOW.model_entry,
        code=FLOW.model_code,
    shell:
        "kvatlas job fetch-model --name {wildcards.model} --entry {params.entry:q} --output {output} > {log} 2>&1"


rule fetch_text:
    output:
        "resources/text/{text}.txt",
    log:
        "logs/fetch_text/{text}.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=2000,
    params:
        entry=FLOW.text_entry,
        code=FLOW.text_code,
    shell:
        "kvatlas job fetch-text --name {wildcards.text} --entry {params.entry:q} --output {output} > {log} 2>&1"
